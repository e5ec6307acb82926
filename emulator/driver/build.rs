//! The library's name for the dynamic loader: programs that are linked with it load NVIDIA's where that is.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rerun-if-changed=build.rs");
}
