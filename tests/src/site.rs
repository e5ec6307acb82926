//! Where suites run: the devices, their kernels, and the record of what ran.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

use splitkv::{Device, Kernels};

use crate::strategy::Budget;

/// The devices, by name, separated by commas; default: every device found.
const DEVICES: &str = "SPLITKV_DEVICE";
/// A file to which each suite appends a line `{"suite": .., "device": .., "cases": n}`.
const REPORT: &str = "SPLITKV_TEST_REPORT";

/// A device with its kernels.
#[derive(Debug)]
pub struct Site {
    /// The device.
    pub device: Device,
    /// The kernels for it.
    pub kernels: Kernels,
}

impl Site {
    /// The device of this name, with its kernels.
    ///
    /// # Errors
    /// The library's; kernels that are stale are an error too.
    pub fn open(name: &str) -> Result<Self, splitkv::Error> {
        let device = Device::open(name)?;
        let kernels = Kernels::find(device.props().target)?;
        // Programs that were carried to another machine were built together with their kernels; the sources are
        // not there to compare with.
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace");
        if workspace.is_dir() {
            kernels.check_fresh(workspace)?;
        }
        Ok(Self { device, kernels })
    }

    /// Whether kernels are interpreted here, which is slow: on an emulator's own device, and on one that is found
    /// through a GPU driver's functions.
    pub fn is_emulated(&self) -> bool {
        self.device.props().name.starts_with("emulated")
    }

    /// The device in reports: its name, and whether a GPU's name stands for an emulator.
    pub fn label(&self) -> String {
        let name = self.device.name();
        if self.is_emulated() && !name.starts_with("emulator") { format!("{name} (emulated)") } else { name.into() }
    }

    /// What a case may cost here.
    pub fn budget(&self) -> Budget {
        if self.is_emulated() { Budget::EMULATOR } else { Budget::GPU }
    }

    /// Cases of a property that run here by default.
    pub fn usual_cases(&self) -> u32 {
        if self.is_emulated() { 48 } else { 256 }
    }
}

/// The devices that this run is for. Empty where none is found.
///
/// # Panics
/// When a device that was asked for or found cannot be used, or its kernels are missing, foreign or stale.
pub fn sites() -> &'static [Site] {
    static SITES: OnceLock<Vec<Site>> = OnceLock::new();
    SITES.get_or_init(|| {
        let names: Vec<String> = match std::env::var(DEVICES) {
            Ok(names) => names.split(',').map(|name| name.trim().to_owned()).collect(),
            Err(_) => Device::list().into_iter().map(|info| info.name).collect(),
        };
        names.iter().map(|name| Site::open(name).unwrap_or_else(|error| panic!("{name}: {error}"))).collect()
    })
}

/// Runs a suite on each device; `body` says how many cases it ran, 0 where the device is none of its. Says so and
/// records it, also where there is no device.
pub fn suite(name: &str, body: impl Fn(&Site) -> usize) {
    if sites().is_empty() {
        say(&format!("{name}: NO DEVICE, so nothing ran. `cargo xtask demo` says what is missing."));
        record(name, "none", 0);
    }
    for site in sites() {
        match body(site) {
            0 => {}
            cases => record(name, &site.label(), cases),
        }
    }
}

/// Prints a line also where the test harness captures output.
pub fn say(line: &str) {
    // A closed pipe is no reason to fail a test.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn record(suite: &str, device: &str, cases: usize) {
    say(&format!("{suite}: ran {cases} cases on {device}"));
    let Ok(path) = std::env::var(REPORT) else { return };
    let line = format!("{}\n", serde_json::json!({ "suite": suite, "device": device, "cases": cases }));
    let file = OpenOptions::new().create(true).append(true).open(&path);
    // In one piece: suites that end at the same time append to the same file.
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("{REPORT}={path}: {error}"));
}
