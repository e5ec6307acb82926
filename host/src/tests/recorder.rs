//! A driver whose memory is the host's and whose launches are only written down.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::driver::{DeviceId, Driver, Handle, LaunchCall};
use crate::{DeviceProps, Error, Result};

pub(super) struct Recorder {
    props: DeviceProps,
    log: Mutex<Log>,
}

#[derive(Default)]
pub(super) struct Log {
    next: Handle,
    /// Memory by address.
    memory: BTreeMap<u64, Vec<u8>>,
    /// Everything else that was made and not destroyed, by handle.
    live: BTreeMap<Handle, Object>,
    /// What was executed.
    pub(super) launches: Vec<Launched>,
    /// Streams that waited for events.
    pub(super) waits: Vec<(Handle, Handle)>,
    /// Whether events are done.
    pub(super) events_done: bool,
}

#[derive(Clone, Debug)]
enum Object {
    Module,
    /// Its module and name.
    Function(Handle, String),
    Stream(Option<Vec<Launched>>),
    Graph(Vec<Launched>),
    Event,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Launched {
    pub(super) stream: Handle,
    pub(super) kernel: String,
    pub(super) grid: u32,
    pub(super) block: u32,
    pub(super) shared_bytes: u32,
    pub(super) arguments: Vec<u64>,
}

impl Recorder {
    pub(super) fn new(props: DeviceProps) -> Self {
        Self { props, log: Mutex::default() }
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    /// How many allocations there are, and how many other objects.
    pub(super) fn alive(&self) -> (usize, usize) {
        let log = self.log();
        (log.memory.len(), log.live.len())
    }

    fn add(&self, object: Object) -> Handle {
        let mut log = self.log();
        log.next += 1;
        let handle = log.next;
        log.live.insert(handle, object);
        handle
    }

    fn remove(&self, handle: Handle) {
        assert!(self.log().live.remove(&handle).is_some(), "{handle} is destroyed twice");
    }

    fn failed(&self, call: &'static str) -> Error {
        let name = "recorder".to_owned();
        Error::Driver { device: name.clone(), call, code: 1, name, message: "it failed".into() }
    }
}

impl Log {
    /// The allocation that has the range.
    fn range(&mut self, address: u64, bytes: usize) -> &mut [u8] {
        let (start, memory) = self.memory.range_mut(..=address).next_back().expect("an allocation");
        let offset = (address - start) as usize;
        &mut memory[offset..offset + bytes]
    }
}

impl Driver for Recorder {
    fn name(&self) -> &str {
        "recorder:0"
    }

    fn id(&self) -> DeviceId {
        DeviceId { driver: "recorder", context: std::ptr::from_ref(self) as u64 }
    }

    fn props(&self) -> &DeviceProps {
        &self.props
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        if bytes > 1 << 32 {
            return Err(Error::OutOfMemory { device: self.name().into(), bytes });
        }
        let mut log = self.log();
        log.next += 1;
        let address = log.next << 34;
        log.memory.insert(address, vec![0xcd; bytes]);
        Ok(address)
    }

    unsafe fn free(&self, address: u64) {
        assert!(self.log().memory.remove(&address).is_some(), "{address:#x} is freed twice");
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.log().range(address, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(self.log().range(address, bytes.len()));
        Ok(())
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<()> {
        self.log().range(address, bytes).fill(byte);
        Ok(())
    }

    fn module_load(&self, _image: &[u8]) -> Result<Handle> {
        Ok(self.add(Object::Module))
    }

    unsafe fn module_unload(&self, module: Handle) {
        self.remove(module);
        self.log().live.retain(|_, object| !matches!(object, Object::Function(of, _) if *of == module));
    }

    unsafe fn module_function(&self, module: Handle, name: &str, _shared_bytes: u32) -> Result<Handle> {
        Ok(self.add(Object::Function(module, name.into())))
    }

    unsafe fn launch(&self, stream: Handle, call: &LaunchCall<'_>) -> Result<()> {
        let mut log = self.log();
        let Some(Object::Function(_, kernel)) = log.live.get(&call.function).cloned() else {
            return Err(self.failed("launch"));
        };
        let LaunchCall { grid, block, shared_bytes, arguments, .. } = *call;
        let launched = Launched { stream, kernel, grid, block, shared_bytes, arguments: arguments.into() };
        match log.live.get_mut(&stream) {
            Some(Object::Stream(Some(recorded))) => recorded.push(launched),
            Some(Object::Stream(None)) => log.launches.push(launched),
            _ => return Err(self.failed("launch")),
        }
        Ok(())
    }

    fn stream_create(&self) -> Result<Handle> {
        Ok(self.add(Object::Stream(None)))
    }

    unsafe fn stream_destroy(&self, stream: Handle) {
        self.remove(stream);
    }

    unsafe fn stream_synchronize(&self, _stream: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn stream_wait(&self, stream: Handle, event: Handle) -> Result<()> {
        self.log().waits.push((stream, event));
        Ok(())
    }

    unsafe fn capture_begin(&self, stream: Handle) -> Result<()> {
        self.log().live.insert(stream, Object::Stream(Some(Vec::new())));
        Ok(())
    }

    unsafe fn capture_end(&self, stream: Handle) -> Result<Handle> {
        let ended = self.log().live.insert(stream, Object::Stream(None));
        match ended {
            Some(Object::Stream(Some(recorded))) => Ok(self.add(Object::Graph(recorded))),
            _ => Err(self.failed("capture_end")),
        }
    }

    unsafe fn graph_launch(&self, graph: Handle, stream: Handle) -> Result<()> {
        let mut log = self.log();
        let Some(Object::Graph(recorded)) = log.live.get(&graph).cloned() else {
            return Err(self.failed("graph_launch"));
        };
        log.launches.extend(recorded.into_iter().map(|launched| Launched { stream, ..launched }));
        Ok(())
    }

    unsafe fn graph_destroy(&self, graph: Handle) {
        self.remove(graph);
    }

    fn event_create(&self) -> Result<Handle> {
        Ok(self.add(Object::Event))
    }

    unsafe fn event_destroy(&self, event: Handle) {
        self.remove(event);
    }

    unsafe fn event_record(&self, _event: Handle, _stream: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn event_query(&self, _event: Handle) -> Result<bool> {
        Ok(self.log().events_done)
    }

    unsafe fn event_synchronize(&self, _event: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn event_elapsed(&self, _start: Handle, _end: Handle) -> Result<f32> {
        Ok(1.5)
    }
}
