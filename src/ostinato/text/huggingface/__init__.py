"""Tokenizers and chat templates of Hugging Face model folders."""
