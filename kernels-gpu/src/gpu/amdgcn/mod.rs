//! The vocabulary on AMD GPUs.
