//! Executes compiled PTX and gfx950 kernels on the CPU.

pub mod cdna;
