//! What the drivers' files do beyond computing: order of work, what keeps memory alive, and each way to fail, on each
//! device that is behind a GPU maker's driver. Without a GPU that is the emulator behind the driver's functions, as
//! `cargo xtask test` arranges it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use splitkv::{Buffer, DType, Device, DeviceProps, Error, Executor, Inputs, Kernels, Stream, Target, Tensor};
use splitkv_tests::case::{Case, Splits};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::{plan_case, run};
use splitkv_tests::site::{Site, suite};

/// Choose the GPU that the emulator behind a driver's functions is.
const EMULATED_CUDA: &str = "SPLITKV_EMULATED_CUDA";
const EMULATED_HIP: &str = "SPLITKV_EMULATED_HIP";

/// The makers' own numbers.
const INVALID_IMAGE: i32 = 200;
const NO_BINARY_FOR_GPU: i32 = 209;
const INVALID_PTX: i32 = 218;
const NOT_FOUND: i32 = 500;
const ILLEGAL_ADDRESS: i32 = 700;
const CAPTURE_UNSUPPORTED: i32 = 900;

/// Which maker's driver a device is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    Nvidia,
    Amd,
}

/// Runs `body` on each device that is behind a maker's driver.
fn drivers(name: &str, body: impl Fn(&Site, Maker)) {
    drivers_where(name, |_, _| true, body);
}

/// Runs `body` on those devices behind a maker's driver that `chosen` says, while no other test of this file runs: when
/// a stream is captured, nobody may wait for the device.
fn drivers_where(name: &str, chosen: impl Fn(&Site, Maker) -> bool, body: impl Fn(&Site, Maker)) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock();
    suite(&format!("drivers::{name}"), |site| {
        let maker = match site.device.name().split_once(':') {
            Some(("cuda", _)) => Maker::Nvidia,
            Some(("hip", _)) => Maker::Amd,
            _ => return 0,
        };
        let chosen = chosen(site, maker);
        if chosen {
            body(site, maker);
        }
        usize::from(chosen)
    });
}

/// Runs an ignored test of this file in a process of its own, and gives what it printed.
#[track_caller]
fn in_a_process(test: &str, variables: &[(&str, &str)]) -> String {
    let mut program = Command::new(std::env::current_exe().expect("the path of this program"));
    program.args(["--exact", test, "--ignored", "--nocapture"]).envs(variables.iter().copied());
    let output = program.output().expect("this program runs again");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{test} with {variables:?}: {text}");
    text
}

/// Two kernels: split, then combined.
fn split_case() -> Case {
    Case { splits: Splits::Exact(3), lse: false, ..Case::new(1, 2, 400, 2, 4) }
}

/// A folder of the site's kernels, each file as `change` gives it.
struct Changed(PathBuf);

impl Changed {
    fn new(site: &Site, name: &str, change: impl Fn(&Path, Vec<u8>) -> Vec<u8>) -> Self {
        let folder = std::env::temp_dir().join(format!("splitkv-drivers-{}-{name}", std::process::id()));
        let from = site.kernels.folder().expect("kernels of a folder");
        let target = site.kernels.target();
        for target in std::iter::once(target).chain(target.base()).map(|target| target.name()) {
            fs::create_dir_all(folder.join(target)).expect("a folder for temporary files");
            for file in fs::read_dir(from.join(target)).expect("the kernels of the site's target and of its base") {
                let path = file.expect("an entry").path();
                let name = path.file_name().expect("a file");
                let bytes = change(&path, fs::read(&path).expect("a file of kernels"));
                fs::write(folder.join(target).join(name), bytes).expect("a changed copy");
            }
        }
        fs::copy(from.join("manifest.json"), folder.join("manifest.json")).expect("the manifest is copied");
        Self(folder)
    }

    /// What loading its kernels fails with.
    #[track_caller]
    fn refused(&self, site: &Site) -> (&'static str, i32, String, String) {
        let kernels = Kernels::open(&self.0, site.kernels.target()).expect("the manifest is whole");
        let plan = plan_case(site, &split_case()).expect("a plan");
        match Executor::new(&site.device, &kernels, &plan).map(|_| ()) {
            Err(Error::Driver { device, call, code, name, message }) if device == site.device.name() => {
                (call, code, name, message)
            }
            other => panic!("{}: {other:?}", site.label()),
        }
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The call that loads a module, and the one that finds a kernel in it.
fn loading(maker: Maker) -> (&'static str, &'static str) {
    match maker {
        Maker::Nvidia => ("cuModuleLoadDataEx", "cuModuleGetFunction"),
        Maker::Amd => ("hipModuleLoadData", "hipModuleGetFunction"),
    }
}

#[track_caller]
fn assert_computes(site: &Site, case: &Case) {
    let tensors = Tensors::new(case);
    let (bits, _) = run(site, case, &tensors).unwrap_or_else(|error| panic!("{}: {error}", site.label()));
    compare(case, &tensors.expected(case), &bits.output(case)).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn an_emulated_gpu_has_the_properties_of_a_real_one() {
    let emulated = |site: &Site, _| site.is_emulated();
    drivers_where("an_emulated_gpu_has_the_properties_of_a_real_one", emulated, |site, _| {
        let props = site.device.props().clone();
        let model = DeviceProps::of(props.target);
        assert_eq!(props.name, format!("emulated {}", model.name));
        assert_eq!(DeviceProps { name: model.name.clone(), ..props }, model);
    });
}

#[test]
fn an_image_that_is_none_is_refused() {
    drivers("an_image_that_is_none_is_refused", |site, maker| {
        let text = Changed::new(site, "text", |_, _| b"this is no kernel".to_vec());
        let (call, code, name, message) = text.refused(site);
        assert_eq!(call, loading(maker).0);
        let allowed: &[_] = match maker {
            Maker::Nvidia if site.is_emulated() => {
                // The compiler's log follows the driver's explanation.
                assert!(message.contains("compilation failed: ") && message.len() > 40, "{message}");
                &[(INVALID_PTX, "CUDA_ERROR_INVALID_PTX")]
            }
            // Versions of the driver differ in what they take it for.
            Maker::Nvidia => &[(INVALID_PTX, "CUDA_ERROR_INVALID_PTX"), (INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE")],
            Maker::Amd => &[(INVALID_IMAGE, "hipErrorInvalidImage")],
        };
        assert!(allowed.contains(&(code, &*name)), "{code} ({name}): {message}");
        let empty = Changed::new(site, "empty", |_, _| Vec::new());
        let (call, code, ..) = empty.refused(site);
        assert!(call == loading(maker).0 && [INVALID_IMAGE, INVALID_PTX].contains(&code), "{call}: {code}");
        assert_computes(site, &split_case());
    });
}

#[test]
fn another_architecture_is_refused() {
    drivers("another_architecture_is_refused", |site, maker| {
        let other = Changed::new(site, "other", |_, mut bytes| match maker {
            Maker::Nvidia => {
                let text = String::from_utf8(bytes).expect("PTX is text");
                let own = text.lines().find(|line| line.starts_with(".target")).expect("PTX names its architecture");
                text.replace(own, ".target sm_121").into_bytes()
            }
            Maker::Amd => {
                // The flags of the ELF header name the GPU: gfx942.
                bytes[0x30] = 0x4c;
                bytes
            }
        });
        let (call, code, name, message) = other.refused(site);
        assert_eq!(call, loading(maker).0, "{message}");
        // A real compiler of PTX may stop at the line that names the architecture.
        let stops = maker == Maker::Nvidia && !site.is_emulated() && code == INVALID_PTX;
        assert!(code == NO_BINARY_FOR_GPU || stops, "{code} ({name}): {message}");
        assert_computes(site, &split_case());
    });
}

#[test]
fn a_missing_kernel_is_refused() {
    drivers("a_missing_kernel_is_refused", |site, maker| {
        let renamed = Changed::new(site, "renamed", |_, mut bytes| {
            for name in site.kernels.catalogue().kernels().iter().map(|kernel| kernel.name.as_bytes()) {
                while let Some(place) = bytes.windows(name.len()).position(|found| found == name) {
                    bytes[place] = b'x';
                }
            }
            bytes
        });
        let (call, code, name, _) = renamed.refused(site);
        assert_eq!((call, code), (loading(maker).1, NOT_FOUND), "{name}");
        assert_computes(site, &split_case());
    });
}

#[test]
fn too_much_memory_is_refused() {
    drivers("too_much_memory_is_refused", |site, _| {
        let asked = 1 << 45;
        match Buffer::new(&site.device, asked) {
            Err(Error::OutOfMemory { device, bytes }) => assert_eq!((&*device, bytes), (site.device.name(), asked)),
            other => panic!("{other:?}"),
        }
        assert_computes(site, &split_case());
    });
}

/// One after the other through an event: the second run's queries are the first run's output.
#[test]
fn streams_wait_for_events() {
    drivers("streams_wait_for_events", |site, _| {
        let case = split_case();
        let tensors = Tensors::new(&case);
        let [q, k, v, first, second, want] = buffers(site, &case, &tensors);
        let mut executors = executors(site, &case, 2);
        let (a, b) = (stream(site), stream(site));
        let [one, two] = &mut executors[..] else { panic!("two executors") };
        one.run(&a, &Inputs::new(&q, &k, &v, &first)).unwrap();
        let between = a.record().unwrap();
        b.wait(&between).unwrap();
        two.run(&b, &Inputs::new(&first, &k, &v, &second)).unwrap();
        let end = b.record().unwrap();
        // Asking comes to an end without waiting.
        while !end.is_done().unwrap() {
            std::thread::yield_now();
        }
        assert!(between.is_done().unwrap());
        let elapsed = end.elapsed_since(&between).unwrap();
        assert!(elapsed.as_secs() < 60, "{elapsed:?}");
        // The same on one stream.
        one.run(&a, &Inputs::new(&first, &k, &v, &want)).unwrap();
        a.synchronize().unwrap();
        assert_eq!(bytes(&second), bytes(&want));
    });
}

/// Everything that work uses may be dropped before the work is done.
#[test]
fn work_keeps_what_it_uses() {
    drivers("work_keeps_what_it_uses", |site, _| {
        let case = split_case();
        let tensors = Tensors::new(&case);
        let (want, _) = run(site, &case, &tensors).unwrap();
        let stream = stream(site);
        let [q, k, v, o, replayed, _] = buffers(site, &case, &tensors);
        let mut executor = executors(site, &case, 1).remove(0);
        let inputs = |o| Inputs::new(&q, &k, &v, o);
        let graph = stream.capture(|| executor.run(&stream, &inputs(&replayed))).unwrap();
        executor.run(&stream, &inputs(&o)).unwrap();
        drop((executor, q, k, v));
        graph.launch(&stream).unwrap();
        drop(graph);
        stream.synchronize().unwrap();
        assert_eq!(bytes(&o), want.o);
        assert_eq!(bytes(&replayed), want.o);
    });
}

/// Allocating while a stream is captured ends the capture, and the stream goes on.
#[test]
fn allocating_during_a_capture_is_refused() {
    drivers("allocating_during_a_capture_is_refused", |site, _| {
        let case = split_case();
        let [q, k, v, o, ..] = buffers(site, &case, &Tensors::new(&case));
        let mut executor = executors(site, &case, 1).remove(0);
        let stream = stream(site);
        let captured = stream.capture(|| {
            executor.run(&stream, &Inputs::new(&q, &k, &v, &o))?;
            Buffer::new(&site.device, 4096).map(drop)
        });
        match captured {
            Err(Error::Driver { code, .. }) => assert_eq!(code, CAPTURE_UNSUPPORTED),
            other => panic!("{other:?}"),
        }
        executor.run(&stream, &Inputs::new(&q, &k, &v, &o)).unwrap();
        stream.synchronize().unwrap();
    });
}

fn stream(site: &Site) -> Stream {
    site.device.stream().expect("a stream")
}

fn executors(site: &Site, case: &Case, count: usize) -> Vec<Executor> {
    let plan = plan_case(site, case).expect("a plan");
    let executor = |_| Executor::new(&site.device, &site.kernels, &plan).expect("an executor");
    (0..count).map(executor).collect()
}

/// Q, K, V of a case, and three more like Q, each in a buffer of its own.
fn buffers(site: &Site, case: &Case, tensors: &Tensors) -> [Tensor; 6] {
    let places = [&tensors.places.q, &tensors.places.k, &tensors.places.v];
    let tensor = |index: usize| {
        let place = places[if index < 3 { index } else { 0 }];
        let contents = &tensors.buffers[place.buffer];
        let buffer = Buffer::new(&site.device, contents.len()).expect("memory");
        buffer.write(0, contents).expect("a copy");
        let strides = [place.strides[0], place.strides[1], place.strides[2], 1];
        Tensor::new(buffer, 0, case.format.into(), &place.shape, &strides).expect("a tensor")
    };
    std::array::from_fn(tensor)
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.buffer().size()];
    tensor.buffer().read(0, &mut bytes).expect("a copy");
    bytes
}

/// A kernel that reaches beyond memory ends its context: the error comes out of the wait, and of all that follows.
#[test]
fn a_fault_comes_out_of_the_wait_and_stays() {
    // A real AMD driver ends the process.
    let reports = |site: &Site, maker| maker == Maker::Nvidia || site.is_emulated();
    drivers_where("a_fault_comes_out_of_the_wait_and_stays", reports, |site, _| {
        let printed = in_a_process("faults", &[("SPLITKV_DEVICE", site.device.name())]);
        if site.is_emulated() {
            for part in ["emulated driver: global access", "outside a live allocation", "kernel attention_bf16"] {
                assert!(printed.contains(part), "{printed}");
            }
        }
    });
}

#[test]
#[ignore = "ends the context: run by `a_fault_comes_out_of_the_wait_and_stays` in a process of its own"]
fn faults() {
    drivers("faults", |site, _| {
        let case = split_case();
        let [sound, k, v, o, ..] = buffers(site, &case, &Tensors::new(&case));
        // SAFETY: none; that nothing is there is the point.
        let nowhere = unsafe { Buffer::from_raw(&site.device, 0x4000, o.buffer().size()) };
        let q = Tensor::new(nowhere, 0, DType::Bf16, o.shape(), o.strides()).expect("a tensor");
        let mut executor = executors(site, &case, 1).remove(0);
        let stream = stream(site);
        executor.run(&stream, &Inputs::new(&q, &k, &v, &o)).expect("is given");
        let failures = [
            stream.synchronize(),
            site.device.synchronize(),
            executor.status().map(drop),
            Buffer::new(&site.device, 4096).map(drop),
            stream.record().map(drop),
            executor.run(&stream, &Inputs::new(&sound, &k, &v, &o)),
        ];
        for failure in failures {
            match failure {
                Err(Error::Driver { code, name, .. }) => {
                    assert_eq!(code, ILLEGAL_ADDRESS);
                    assert!(["CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress"].contains(&&*name), "{name}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

/// GPUs that no kernels are built for, and none at all.
#[test]
fn other_gpus_are_refused() {
    drivers_where(
        "other_gpus_are_refused",
        |site, _| site.is_emulated(),
        |_, maker| {
            let others: &[(&str, &str)] = match maker {
                Maker::Nvidia => &[(EMULATED_CUDA, "sm_80"), (EMULATED_CUDA, "none")],
                Maker::Amd => &[(EMULATED_HIP, "gfx942")],
            };
            for other in others {
                in_a_process("finds_another_gpu", &[*other]);
            }
        },
    );
}

#[test]
#[ignore = "needs another GPU: run by `other_gpus_are_refused` in a process of its own"]
fn finds_another_gpu() {
    let refused = |device: &str| {
        assert!(Device::list().iter().all(|info| info.name != device), "{device} is listed");
        Device::open(device).map(|device| device.to_string()).expect_err("cannot be opened")
    };
    let unsupported = |device, architecture: &str| match refused(device) {
        Error::UnsupportedArchitecture { found, .. } => assert!(found.contains(architecture), "{found}"),
        other => panic!("{other:?}"),
    };
    match (std::env::var(EMULATED_CUDA).as_deref(), std::env::var(EMULATED_HIP).as_deref()) {
        (Ok("sm_80"), _) => unsupported("cuda:0", "8.0"),
        (_, Ok("gfx942")) => unsupported("hip:0", "gfx942"),
        _ => match refused("cuda:0") {
            Error::NoDevice { reason, .. } => assert!(reason.contains("CUDA_ERROR_NO_DEVICE"), "{reason}"),
            other => panic!("{other:?}"),
        },
    }
}

/// The same driver's file on compute capability 10.0.
#[test]
fn sm_100_computes() {
    let emulated_nvidia = |site: &Site, maker| site.is_emulated() && maker == Maker::Nvidia;
    drivers_where("sm_100_computes", emulated_nvidia, |_, _| {
        in_a_process("computes_on_sm_100", &[(EMULATED_CUDA, "sm_100"), ("SPLITKV_DEVICE", "cuda:0")]);
    });
}

#[test]
#[ignore = "needs compute capability 10.0: run by `sm_100_computes` in a process of its own"]
fn computes_on_sm_100() {
    drivers("computes_on_sm_100", |site, _| {
        assert_eq!(site.device.props().target, Target::Sm100f);
        assert_computes(site, &Case { splits: Splits::Exact(1), ..split_case() });
    });
}
