//! Finding and refusing folders of compiled kernels.

use std::fs;

use super::{Folder, device, kernels, manifest};
use crate::manifest::Manifest;
use crate::{Catalogue, DType, Device, Error, Executor, Kernels, Options, Problem, Target, plan};

#[test]
fn missing_kernels() {
    let folder = Folder::new();
    let error = Kernels::open(folder.path(), Target::Sm90a).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::KernelsNotFound { target: Target::Sm90a, searched } if searched == [folder.path()]));
    assert!(text.contains("no compiled kernels for sm_90") && text.contains("cargo xtask build-kernels"), "{text}");
}

#[test]
fn foreign_kernels_name_both_hashes() {
    let folder = Folder::new();
    folder.write(&Manifest { abi_hash: "00000000deadbeef".into(), ..manifest(Target::Sm90a) });
    let text = Kernels::open(folder.path(), Target::Sm90a).unwrap_err().to_string();
    assert!(text.contains("ABI hash 00000000deadbeef") && text.contains(&Manifest::abi_hash()), "{text}");
}

#[test]
fn kernels_for_other_targets() {
    let folder = Folder::with_kernels(Target::Gfx950);
    let text = Kernels::open(folder.path(), Target::Sm90a).unwrap_err().to_string();
    assert!(text.contains("were built for gfx950, not for sm_90a"), "{text}");
}

#[test]
fn bad_manifests() {
    let folder = Folder::new();
    let problem = |text: &str| {
        fs::write(folder.path().join(Manifest::FILE), text).unwrap();
        match Kernels::open(folder.path(), Target::Sm90a).unwrap_err() {
            Error::BadManifest { problem, .. } => problem,
            error => panic!("{error}"),
        }
    };
    assert!(problem("{").contains("EOF"));
    assert_eq!(problem("{}"), "no format number");
    assert_eq!(problem(r#"{"format": 7, "new": 1}"#), "format 7; this library reads 1");
    assert!(problem(r#"{"format": 1}"#).contains("missing field"));

    let mut changed = manifest(Target::Sm90a);
    changed.kernels[0].threads += 1;
    let (name, target) = (changed.kernels[0].name.clone(), changed.kernels[0].target.clone());
    let changed = serde_json::to_string(&changed).unwrap();
    assert_eq!(problem(&changed), format!("the entry of {name} for {target} is not the ABI table's"));
}

#[test]
fn stale_kernels() {
    let (kernels, _folder) = kernels(Target::Sm90a);
    let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let error = kernels.check_fresh(workspace).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::StaleKernels { .. }));
    assert!(text.contains("hash 55555") && text.contains("rebuild"), "{text}");
    let nowhere = Folder::new();
    assert!(matches!(kernels.check_fresh(nowhere.path()), Err(Error::Io { .. })));
}

#[test]
fn files_are_read_when_a_device_first_needs_them() {
    let (device, recorder) = device(Target::Sm90a);
    let (kernels, folder) = kernels(Target::Sm90a);
    assert_eq!(kernels.catalogue().kernels(), Catalogue::of(Target::Sm90a).kernels());
    let problem = Problem::new(1, 8, 2, 1, 100, 128, DType::Bf16);
    let plan = plan(&problem, &Options::default(), device.props(), kernels.catalogue()).unwrap();
    let first = Executor::new(&device, &kernels, &plan).unwrap();
    let modules = recorder.alive().1;
    let second = Executor::new(&device, &kernels, &plan).unwrap();
    assert_eq!(recorder.alive().1, modules, "it is loaded once");
    drop((first, second));
    let file = folder.path().join(format!("{}.bin", plan.kernel().name));
    fs::remove_file(&file).unwrap();
    Executor::new(&device, &kernels, &plan).unwrap();
    let (other, _) = super::device(Target::Sm90a);
    let error = Executor::new(&other, &kernels, &plan).unwrap_err();
    assert!(matches!(error, Error::Io { path, .. } if path == file));
}

#[test]
fn devices_that_are_not_there() {
    let text = |name| Device::open(name).unwrap_err().to_string();
    assert!(text("gpu").starts_with("no device gpu: devices are named "), "{}", text("gpu"));
    assert!(text("gpu:0").contains("devices are named "));
    assert!(text("hip:x").starts_with("no device hip"), "{}", text("hip:x"));
    #[cfg(not(feature = "cuda"))]
    assert_eq!(text("cuda:0"), "no device cuda:0: this build lacks the cargo feature `cuda`");
    #[cfg(feature = "emulator")]
    assert_eq!(text("emulator:sm_80"), "no device emulator:sm_80: there are sm_90, sm_90a, sm_100, sm_100f, gfx950");
}

#[cfg(feature = "emulator")]
#[test]
fn emulators_are_listed_last_and_each_opened_one_is_another() {
    let names: Vec<_> = Device::list().into_iter().map(|info| info.name).collect();
    assert_eq!(names[names.len() - 3..], ["emulator:sm_90a", "emulator:sm_100f", "emulator:gfx950"]);
    let (first, second) = (Device::open("emulator:gfx950").unwrap(), Device::open("emulator:gfx950").unwrap());
    assert_ne!(first.id(), second.id());
    assert_eq!(first.props().multiprocessors, 256);
    Device::best().unwrap();
}
