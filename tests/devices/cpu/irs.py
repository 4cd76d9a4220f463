"""Small pieces of LLVM IR, for tests of how IR becomes native code."""

from __future__ import annotations

MULTIPLY_ADD = """
define void @multiply_add(ptr %p, ptr %q) {
  %a = load <16 x float>, ptr %p, align 64
  %b = load <16 x float>, ptr %q, align 64
  %c = fmul <16 x float> %a, %b
  %d = fadd <16 x float> %c, %a
  store <16 x float> %d, ptr %p, align 64
  ret void
}
"""
"""p = p * q + p, over sixteen floats."""

PROCESS_ID = """
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
define i64 @process_id(i64 %number) {
  %yielded = call i32 @sched_yield()
  %id = call i64 (i64, ...) @syscall(i64 %number)
  ret i64 %id
}
"""

NIBBLES = """
define void @nibbles(ptr %p) {
  %a = load <64 x i8>, ptr %p, align 64
  %b = lshr <64 x i8> %a, splat (i8 4)
  store <64 x i8> %b, ptr %p, align 64
  ret void
}
"""

COPY = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @copy(ptr %to, ptr %from) {
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 64, i1 false)
  ret void
}
"""


def constant(value: int, name: str = "answer") -> str:
    """A function that returns `value`."""
    return f"define i64 @{name}() {{\n  ret i64 {value}\n}}\n"
