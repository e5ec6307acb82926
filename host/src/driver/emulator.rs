//! The emulator as a device: same kernels, same arguments, on the CPU.
//!
//! A launch returns when the kernel has ended, so that a stream has nothing to wait for, and a fault comes out of the
//! launch itself. Each opened device is a machine of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kernels_gpu::abi::Target;
use splitkv_emulator::{Arch, Machine, Module, Swizzle};

use super::{Backend, DeviceId, Driver, Handle, LaunchCall, LaunchCounters, Listed, TensorMap};
use crate::{DeviceProps, Error, Result};

pub(super) const BACKEND: Backend = Backend { name: "emulator", list, open };

/// Tells machines and their handles apart; never 0.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn list() -> Result<Vec<Listed>> {
    // A target's kernels are among those of another that is based on it.
    let is_base = |base: Target| Target::ALL.iter().any(|target| target.base() == Some(base));
    let targets = Target::ALL.into_iter().filter(|target| !is_base(*target));
    Ok(targets.map(|target| (target.name().into(), Ok(props(target)))).collect())
}

fn open(name: &str) -> Result<Arc<dyn Driver>> {
    let Some(target) = Target::ALL.into_iter().find(|target| target.name() == name) else {
        let known = Target::ALL.map(Target::name).join(", ");
        return Err(Error::NoDevice { name: format!("emulator:{name}"), reason: format!("there are {known}") });
    };
    let arch = match target {
        Target::Sm90 | Target::Sm90a => Arch::Sm90,
        Target::Sm100 | Target::Sm100f => Arch::Sm100,
        Target::Gfx950 => Arch::Gfx950,
    };
    Ok(Arc::new(Emulator {
        name: format!("emulator:{name}"),
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        props: props(target),
        machine: Machine::new(arch),
        handles: Mutex::default(),
        counters: Mutex::default(),
    }))
}

fn props(target: Target) -> DeviceProps {
    let device = DeviceProps::of(target);
    DeviceProps { name: format!("emulated {}", device.name), ..device }
}

struct Emulator {
    name: String,
    id: u64,
    props: DeviceProps,
    machine: Machine,
    handles: Mutex<HashMap<Handle, Object>>,
    /// Of each launch, while somebody counts.
    counters: Mutex<Option<Vec<LaunchCounters>>>,
}

/// What a handle stands for.
#[derive(Clone)]
enum Object {
    Module(Arc<Module>),
    Function(Arc<Function>),
    Stream(Arc<Mutex<Option<Vec<Recorded>>>>),
    Graph(Arc<Vec<Recorded>>),
    Event(Arc<Mutex<Option<Instant>>>),
}

struct Function {
    module: Arc<Module>,
    name: String,
}

/// A launch that a stream recorded in place of executing it.
#[derive(Clone)]
struct Recorded {
    function: Arc<Function>,
    grid: u32,
    block: u32,
    shared_bytes: u32,
    arguments: Vec<u64>,
}

impl Emulator {
    fn add(&self, object: Object) -> Handle {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&self.handles).insert(handle, object);
        handle
    }

    fn remove(&self, handle: Handle) {
        lock(&self.handles).remove(&handle);
    }

    fn object(&self, handle: Handle) -> Option<Object> {
        lock(&self.handles).get(&handle).cloned()
    }

    fn function(&self, handle: Handle) -> Result<Arc<Function>> {
        match self.object(handle) {
            Some(Object::Function(function)) => Ok(function),
            _ => Err(self.unsupported("a launch of something that is not a kernel")),
        }
    }

    fn stream(&self, handle: Handle) -> Result<Arc<Mutex<Option<Vec<Recorded>>>>> {
        match self.object(handle) {
            Some(Object::Stream(stream)) => Ok(stream),
            _ => Err(self.unsupported("work on something that is not a stream")),
        }
    }

    fn event(&self, handle: Handle) -> Result<Arc<Mutex<Option<Instant>>>> {
        match self.object(handle) {
            Some(Object::Event(event)) => Ok(event),
            _ => Err(self.unsupported("a use of something that is not an event")),
        }
    }

    fn unsupported(&self, what: &'static str) -> Error {
        Error::Unsupported { device: self.name.clone(), what }
    }

    /// What the emulator fails with, in this library's words.
    fn error(&self, error: splitkv_emulator::Error) -> Error {
        match error {
            splitkv_emulator::Error::OutOfMemory { asked, .. } => {
                Error::OutOfMemory { device: self.name.clone(), bytes: asked as usize }
            }
            source => Error::Emulator { device: self.name.clone(), source },
        }
    }

    fn execute(&self, launch: &Recorded) -> Result<()> {
        let Function { module, name } = &*launch.function;
        let (grid, block) = ([launch.grid, 1, 1], [launch.block, 1, 1]);
        let counters = self
            .machine
            .launch(module, name, grid, block, launch.shared_bytes, &launch.arguments)
            .map_err(|error| self.error(error))?;
        if let Some(launches) = &mut *lock(&self.counters) {
            launches.push(LaunchCounters { kernel: name.clone(), counters });
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver for Emulator {
    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> DeviceId {
        DeviceId { driver: BACKEND.name, context: self.id }
    }

    fn props(&self) -> &DeviceProps {
        &self.props
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        self.machine.alloc(bytes as u64).map_err(|error| self.error(error))
    }

    fn alloc_workspace(&self, bytes: usize) -> Result<u64> {
        self.machine.alloc_workspace(bytes as u64).map_err(|error| self.error(error))
    }

    fn tensor_map(&self, map: &TensorMap) -> Result<[u8; 128]> {
        let map = splitkv_emulator::TensorMap {
            address: map.address,
            element_bytes: 1,
            dims: map.dims.into(),
            strides: map.strides.into(),
            box_dims: map.box_dims.into(),
            swizzle: if map.swizzle == 128 { Swizzle::Span128 } else { Swizzle::Span64 },
        };
        map.encode().map_err(|error| self.error(error))
    }

    unsafe fn free(&self, address: u64) {
        let _ = self.machine.free(address);
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.machine.write(address, bytes).map_err(|error| self.error(error))
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.machine.read(address, bytes).map_err(|error| self.error(error))
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<()> {
        self.machine.fill(address, byte, bytes as u64).map_err(|error| self.error(error))
    }

    fn module_load(&self, image: &[u8]) -> Result<Handle> {
        let module = self.machine.load(image).map_err(|error| self.error(error))?;
        Ok(self.add(Object::Module(Arc::new(module))))
    }

    unsafe fn module_unload(&self, module: Handle) {
        let mut handles = lock(&self.handles);
        if let Some(Object::Module(module)) = handles.remove(&module) {
            handles.retain(|_, object| !matches!(object, Object::Function(f) if Arc::ptr_eq(&f.module, &module)));
        }
    }

    unsafe fn module_function(&self, module: Handle, name: &str, _shared_bytes: u32) -> Result<Handle> {
        let Some(Object::Module(module)) = self.object(module) else {
            return Err(self.unsupported("a kernel of something that is not a module"));
        };
        // Finds out whether there is such a kernel.
        module.argument_sizes(name).map_err(|error| self.error(error))?;
        Ok(self.add(Object::Function(Arc::new(Function { module, name: name.into() }))))
    }

    unsafe fn launch(&self, stream: Handle, call: &LaunchCall<'_>) -> Result<()> {
        let stream = self.stream(stream)?;
        let launch = Recorded {
            function: self.function(call.function)?,
            grid: call.grid,
            block: call.block,
            shared_bytes: call.shared_bytes,
            arguments: call.arguments.into(),
        };
        // Locked until the kernel has ended: another thread's work on the same stream comes after it.
        match &mut *lock(&stream) {
            Some(recorded) => {
                recorded.push(launch);
                Ok(())
            }
            None => self.execute(&launch),
        }
    }

    fn stream_create(&self) -> Result<Handle> {
        Ok(self.add(Object::Stream(Arc::default())))
    }

    unsafe fn stream_destroy(&self, stream: Handle) {
        self.remove(stream);
    }

    unsafe fn stream_synchronize(&self, _stream: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn stream_wait(&self, _stream: Handle, _event: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn capture_begin(&self, stream: Handle) -> Result<()> {
        *lock(&*self.stream(stream)?) = Some(Vec::new());
        Ok(())
    }

    unsafe fn capture_end(&self, stream: Handle) -> Result<Handle> {
        let recorded = lock(&*self.stream(stream)?).take().unwrap_or_default();
        Ok(self.add(Object::Graph(Arc::new(recorded))))
    }

    unsafe fn graph_launch(&self, graph: Handle, stream: Handle) -> Result<()> {
        let Some(Object::Graph(recorded)) = self.object(graph) else {
            return Err(self.unsupported("a launch of something that is not a graph"));
        };
        let stream = self.stream(stream)?;
        let _order = lock(&stream);
        recorded.iter().try_for_each(|launch| self.execute(launch))
    }

    unsafe fn graph_destroy(&self, graph: Handle) {
        self.remove(graph);
    }

    fn event_create(&self) -> Result<Handle> {
        Ok(self.add(Object::Event(Arc::default())))
    }

    unsafe fn event_destroy(&self, event: Handle) {
        self.remove(event);
    }

    unsafe fn event_record(&self, event: Handle, _stream: Handle) -> Result<()> {
        *lock(&*self.event(event)?) = Some(Instant::now());
        Ok(())
    }

    unsafe fn event_query(&self, _event: Handle) -> Result<bool> {
        Ok(true)
    }

    unsafe fn event_synchronize(&self, _event: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32> {
        let times = (*lock(&*self.event(start)?), *lock(&*self.event(end)?));
        let (Some(start), Some(end)) = times else {
            return Err(self.unsupported("the time of an event that was not recorded"));
        };
        Ok(end.saturating_duration_since(start).as_secs_f32() * 1e3)
    }

    fn count_launches(&self) -> Result<()> {
        *lock(&self.counters) = Some(Vec::new());
        Ok(())
    }

    fn take_counters(&self) -> Vec<LaunchCounters> {
        lock(&self.counters).take().unwrap_or_default()
    }
}
