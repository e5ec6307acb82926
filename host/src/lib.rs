//! Split-KV attention for model inference.

pub mod manifest;
