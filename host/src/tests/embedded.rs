//! Kernels that are in the program itself.

use std::env;

use half::bf16;

use crate::artefacts::FILES;
use crate::{AttentionOptions, Catalogue, Device, Kernels, Target, Tensor, attention};

/// All artefacts together may add this much to a program: some 20 KiB for each of the kernels.
const MOST_BYTES: usize = 6 << 20;

#[test]
fn they_stay_small() {
    let bytes: usize = FILES.iter().map(|(_, packed)| packed.len()).sum();
    println!("{} files, {bytes} bytes", FILES.len());
    assert!(bytes > 0 && bytes <= MOST_BYTES, "{bytes} bytes");
}

#[test]
fn they_are_found_and_compute() {
    for target in Target::ALL {
        let kernels = Kernels::embedded(target).unwrap();
        assert_eq!(kernels.folder(), None);
        assert_eq!(kernels.catalogue(), &Catalogue::of(target));
        let found = Kernels::find(target).unwrap();
        assert_eq!(found.folder().is_some(), env::var_os("SPLITKV_KERNELS").is_some(), "the variable goes first");

        // One key: O is its V.
        let device = Device::open(&format!("emulator:{}", target.name())).unwrap();
        let tensor = |value: f32, heads: usize| {
            let data = vec![bf16::from_f32(value); heads * 128];
            Tensor::from_host(&device, &data, &[1, 1, heads, 128]).unwrap()
        };
        let (q, k, v) = (tensor(1.0, 4), tensor(2.0, 2), tensor(3.0, 2));
        let (o, _) = attention(&device, &kernels, &q, &k, &v, &AttentionOptions::default()).unwrap();
        assert_eq!(o.to_host::<bf16>().unwrap(), vec![bf16::from_f32(3.0); 4 * 128], "{}", device.name());
    }
}
