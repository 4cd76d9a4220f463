"""Models on Hugging Face: `hf:org/name[:QUANT or :file.gguf][@revision]`.

`resolve` leads from a reference to files in Hugging Face's own cache. `client` and `failures` alone know the
`huggingface_hub` package; all others are plain functions of names and sizes.
"""
