"""Model files: containers (`gguf`) and the block encodings their tensors are stored in (`encodings`)."""
