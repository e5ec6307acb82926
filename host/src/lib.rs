//! Split-KV attention for model inference.
