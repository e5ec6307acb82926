//! A device as both makers' drivers see it: memory, modules, and streams whose work is done when somebody waits.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Instant;

use splitkv_emulator::{Arch, Error, FaultKind, Machine, Module};

use crate::code::Code;

/// What callers get for an object. 0 is none, and as a stream the default one.
pub(crate) type Handle = u64;
pub(crate) type Result<T, E = Code> = std::result::Result<T, E>;

/// The default stream.
pub(crate) const DEFAULT: Handle = 0;

/// An opened device. All of it is behind one lock: work is done by whoever waits for it, one piece at a time.
pub(crate) struct Runtime {
    machine: Machine,
    next: Handle,
    modules: HashMap<Handle, Arc<Module>>,
    functions: HashMap<Handle, Function>,
    streams: HashMap<Handle, Stream>,
    events: HashMap<Handle, Event>,
    graphs: HashMap<Handle, Vec<Launch>>,
    /// Dynamic shared memory that a kernel may have before it asks for more, in bytes.
    shared_without_asking: u32,
    /// What a kernel failed with. Nothing works any more.
    failed: Option<Code>,
}

struct Function {
    module: Handle,
    name: String,
    argument_sizes: Vec<u32>,
    /// The most dynamic shared memory that a launch may have.
    shared_limit: u32,
}

/// A launch of a kernel.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) function: Handle,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) arguments: Vec<u64>,
}

/// Work of a stream.
enum Work {
    Launch(Launch),
    /// The time of the event, if it was not recorded again since.
    Record(Handle),
    /// Work of another stream has to be done.
    Wait(Point),
}

/// The place in a stream where so many pieces of work are done.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Point {
    stream: Handle,
    done: u64,
}

/// A queue of work.
#[derive(Default)]
pub(crate) struct Stream {
    /// Waits for the default stream, and the default stream for it.
    blocking: bool,
    pending: VecDeque<Work>,
    /// Pieces of work that are done.
    done: u64,
    capture: Option<Capture>,
}

/// How much a capture forbids meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaptureMode {
    /// What is unsafe, to all threads.
    Global,
    /// What is unsafe, to the thread that captures.
    ThreadLocal,
    /// Nothing.
    Relaxed,
}

impl CaptureMode {
    /// By the drivers' number.
    pub(crate) fn new(number: u32) -> Result<Self> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(Code::InvalidValue),
        }
    }

    /// The drivers' number.
    pub(crate) fn number(self) -> u32 {
        self as u32
    }
}

thread_local! {
    /// What captures may forbid to the thread.
    static THREAD_MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// Sets what captures may forbid to this thread; what it was before.
pub(crate) fn exchange_capture_mode(mode: CaptureMode) -> CaptureMode {
    THREAD_MODE.replace(mode)
}

/// Work that is recorded in place of being done.
struct Capture {
    mode: CaptureMode,
    thread: ThreadId,
    launches: Vec<Launch>,
    /// Something was done that is not allowed meanwhile.
    broken: bool,
}

#[derive(Default)]
struct Event {
    recorded: Option<Recorded>,
}

#[derive(Clone, Copy)]
enum Recorded {
    /// In this place; the time, when the stream has come there.
    At(Point, Option<Instant>),
    /// In the capture of this stream.
    Captured(Handle),
}

impl Runtime {
    pub(crate) fn new(arch: Arch, shared_without_asking: u32) -> Self {
        Self {
            machine: Machine::new(arch),
            next: 1,
            modules: HashMap::new(),
            functions: HashMap::new(),
            streams: HashMap::from([(DEFAULT, Stream { blocking: true, ..Stream::default() })]),
            events: HashMap::new(),
            graphs: HashMap::new(),
            shared_without_asking,
            failed: None,
        }
    }

    /// What a kernel failed with comes out of every later call.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }

    /// A new handle, which looks like the address that it is in a driver.
    fn handle(&mut self) -> Handle {
        self.next += 1;
        self.next << 8
    }

    // Memory

    /// Undefined data may be stored anywhere, as on a GPU; it is reported when it decides something.
    pub(crate) fn alloc(&mut self, bytes: usize) -> Result<u64> {
        self.not_in_a_capture()?;
        self.machine.alloc_workspace(bytes as u64).map_err(code)
    }

    /// Does not do the work that is pending: work that uses the memory fails when it is done.
    pub(crate) fn free(&mut self, address: u64) -> Result<()> {
        self.not_in_a_capture()?;
        self.machine.free(address).map_err(code)
    }

    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        self.default_stream_is_done()?;
        self.machine.write(address, bytes).map_err(code)
    }

    pub(crate) fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.default_stream_is_done()?;
        self.machine.read(address, bytes).map_err(code)
    }

    pub(crate) fn fill(&mut self, address: u64, byte: u8, bytes: usize) -> Result<()> {
        self.default_stream_is_done()?;
        self.machine.fill(address, byte, bytes as u64).map_err(code)
    }

    /// Before a copy, which belongs to the default stream.
    fn default_stream_is_done(&mut self) -> Result<()> {
        self.not_in_a_capture()?;
        self.synchronize_stream(DEFAULT)
    }

    // Modules

    /// The error's text is what a compiler's log would say.
    pub(crate) fn load(&mut self, image: &[u8]) -> Result<Handle, Error> {
        let module = self.machine.load(image)?;
        let handle = self.handle();
        self.modules.insert(handle, Arc::new(module));
        Ok(handle)
    }

    /// Work that is pending and uses the module fails when it is done.
    pub(crate) fn unload(&mut self, module: Handle) -> Result<()> {
        self.modules.remove(&module).ok_or(Code::InvalidHandle)?;
        self.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    pub(crate) fn function(&mut self, module: Handle, name: &str) -> Result<Handle> {
        let image = self.modules.get(&module).ok_or(Code::InvalidHandle)?;
        let argument_sizes = image.argument_sizes(name).map_err(code)?;
        let known = self.functions.iter().find(|(_, known)| known.module == module && known.name == name);
        if let Some((&handle, _)) = known {
            return Ok(handle);
        }
        let shared_limit = self.shared_without_asking;
        let handle = self.handle();
        self.functions.insert(handle, Function { module, name: name.into(), argument_sizes, shared_limit });
        Ok(handle)
    }

    /// Lets launches have this much dynamic shared memory.
    pub(crate) fn allow_shared(&mut self, function: Handle, bytes: u32) -> Result<()> {
        let function = self.functions.get_mut(&function).ok_or(Code::InvalidHandle)?;
        let module = self.modules.get(&function.module).ok_or(Code::InvalidHandle)?;
        let declared = module.static_shared_bytes(&function.name).map_err(code)?;
        if bytes > self.machine.arch().max_shared_bytes().saturating_sub(declared) {
            return Err(Code::InvalidValue);
        }
        function.shared_limit = bytes.max(self.shared_without_asking);
        Ok(())
    }

    pub(crate) fn argument_sizes(&self, function: Handle) -> Result<&[u32]> {
        Ok(&self.functions.get(&function).ok_or(Code::InvalidHandle)?.argument_sizes)
    }

    pub(crate) fn launch(&mut self, stream: Handle, launch: Launch) -> Result<()> {
        let function = self.functions.get(&launch.function).ok_or(Code::InvalidHandle)?;
        let module = self.modules.get(&function.module).ok_or(Code::InvalidHandle)?;
        let most = module.max_threads(&function.name).map_err(code)?;
        let threads = launch.block.iter().try_fold(1_u32, |product, &n| product.checked_mul(n));
        let [x, y, z] = launch.grid;
        let grid = (1..=i32::MAX as u32).contains(&x) && (1..=65_535).contains(&y) && (1..=65_535).contains(&z);
        let block = threads.is_some_and(|threads| (1..=most).contains(&threads));
        if !grid || !block || launch.shared_bytes > function.shared_limit {
            return Err(Code::InvalidValue);
        }
        match &mut self.stream(stream)?.capture {
            Some(capture) => capture.launches.push(launch),
            None => self.give(stream, [Work::Launch(launch)]),
        }
        Ok(())
    }

    // Streams

    pub(crate) fn stream_create(&mut self, blocking: bool) -> Handle {
        let handle = self.handle();
        self.streams.insert(handle, Stream { blocking, ..Stream::default() });
        handle
    }

    pub(crate) fn stream_destroy(&mut self, stream: Handle) -> Result<()> {
        if stream == DEFAULT {
            return Err(Code::InvalidHandle);
        }
        let end = self.end(stream)?;
        self.advance(end);
        self.streams.remove(&stream);
        Ok(())
    }

    pub(crate) fn stream(&mut self, stream: Handle) -> Result<&mut Stream> {
        self.streams.get_mut(&stream).ok_or(Code::InvalidHandle)
    }

    pub(crate) fn synchronize_stream(&mut self, stream: Handle) -> Result<()> {
        if let Some(capture) = &mut self.stream(stream)?.capture {
            capture.broken = true;
            return Err(Code::CaptureUnsupported);
        }
        for point in self.implied(stream)?.into_iter().chain([self.end(stream)?]) {
            self.advance(point);
        }
        self.check()
    }

    pub(crate) fn synchronize(&mut self) -> Result<()> {
        let captures: Vec<_> = self.streams.values_mut().filter_map(|stream| stream.capture.as_mut()).collect();
        if !captures.is_empty() {
            captures.into_iter().for_each(|capture| capture.broken = true);
            return Err(Code::CaptureUnsupported);
        }
        let mut streams: Vec<Handle> = self.streams.keys().copied().collect();
        streams.sort_unstable();
        for stream in streams {
            let end = self.end(stream)?;
            self.advance(end);
        }
        self.check()
    }

    pub(crate) fn stream_wait(&mut self, stream: Handle, event: Handle) -> Result<()> {
        let recorded = self.events.get(&event).ok_or(Code::InvalidHandle)?.recorded;
        let capturing = self.stream(stream)?.capture.as_mut();
        match (recorded, capturing) {
            (None, _) => Ok(()),
            (Some(Recorded::At(point, _)), None) => {
                self.give(stream, [Work::Wait(point)]);
                Ok(())
            }
            // Captured work is in order anyway.
            (Some(Recorded::Captured(origin)), Some(_)) if origin == stream => Ok(()),
            (Some(Recorded::At(..)), Some(capture)) => {
                capture.broken = true;
                Err(Code::CaptureIsolation)
            }
            // A second stream would join the capture.
            (Some(Recorded::Captured(_)), _) => Err(Code::NotSupported),
        }
    }

    /// Where the work given so far is done.
    fn end(&self, stream: Handle) -> Result<Point> {
        let queue = self.streams.get(&stream).ok_or(Code::InvalidHandle)?;
        Ok(Point { stream, done: queue.done + queue.pending.len() as u64 })
    }

    /// What work of `stream` has to wait for without being told: the default stream for all blocking ones, and they
    /// for it.
    fn implied(&mut self, stream: Handle) -> Result<Vec<Point>> {
        let blocking = |(handle, queue): (&Handle, &Stream)| (queue.blocking && *handle != stream).then_some(*handle);
        let others: Vec<Handle> = match stream {
            DEFAULT => self.streams.iter().filter_map(blocking).collect(),
            _ if self.stream(stream)?.blocking => vec![DEFAULT],
            _ => Vec::new(),
        };
        if others.iter().any(|other| self.streams[other].capture.is_some()) {
            return Err(Code::CaptureImplicit);
        }
        others.into_iter().map(|other| self.end(other)).collect()
    }

    fn give(&mut self, stream: Handle, work: impl IntoIterator<Item = Work>) {
        let waits = self.implied(stream).unwrap_or_default().into_iter().map(Work::Wait);
        let work: Vec<Work> = waits.chain(work).collect();
        if let Some(queue) = self.streams.get_mut(&stream) {
            queue.pending.extend(work);
        }
    }

    /// Does a stream's work up to `point`, and what that waits for.
    fn advance(&mut self, point: Point) {
        // A stream that was destroyed has done its work.
        while let Some(stream) = self.streams.get_mut(&point.stream)
            && stream.done < point.done
        {
            let Some(work) = stream.pending.pop_front() else { return };
            stream.done += 1;
            let here = Point { stream: point.stream, done: stream.done };
            match work {
                Work::Wait(other) => self.advance(other),
                Work::Launch(launch) => self.execute(&launch),
                Work::Record(event) => {
                    if let Some(Event { recorded: Some(Recorded::At(place, time)) }) = self.events.get_mut(&event)
                        && *place == here
                    {
                        *time = Some(Instant::now());
                    }
                }
            }
        }
    }

    fn is_done(&self, point: Point) -> bool {
        self.streams.get(&point.stream).is_none_or(|stream| stream.done >= point.done)
    }

    fn execute(&mut self, launch: &Launch) {
        if self.failed.is_some() {
            return;
        }
        let Launch { function, grid, block, shared_bytes, arguments } = launch;
        let found = self.functions.get(function).and_then(|f| Some((f, self.modules.get(&f.module)?)));
        let (text, code) = match found {
            None => ("a kernel was unloaded before its work was done".into(), Code::LaunchFailed),
            Some((function, module)) => {
                match self.machine.launch(module, &function.name, *grid, *block, *shared_bytes, arguments) {
                    Ok(_) => return,
                    Err(error) => (error.to_string(), code(error)),
                }
            }
        };
        eprintln!("emulated driver: {text}");
        self.failed = Some(code);
    }

    // Capture

    pub(crate) fn capture_begin(&mut self, stream: Handle, mode: CaptureMode) -> Result<()> {
        if stream == DEFAULT {
            return Err(Code::CaptureUnsupported);
        }
        let capture = &mut self.stream(stream)?.capture;
        if capture.is_some() {
            return Err(Code::IllegalState);
        }
        let thread = std::thread::current().id();
        *capture = Some(Capture { mode, thread, launches: Vec::new(), broken: false });
        Ok(())
    }

    pub(crate) fn capture_end(&mut self, stream: Handle) -> Result<Handle> {
        let slot = &mut self.stream(stream)?.capture;
        let capture = slot.as_ref().ok_or(Code::IllegalState)?;
        if capture.mode != CaptureMode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Code::CaptureWrongThread);
        }
        let Some(Capture { launches, broken: false, .. }) = slot.take() else { return Err(Code::CaptureInvalidated) };
        let graph = self.handle();
        self.graphs.insert(graph, launches);
        Ok(graph)
    }

    /// Refuses what is unsafe while this thread captures, and ends such captures.
    fn not_in_a_capture(&mut self) -> Result<()> {
        if THREAD_MODE.get() == CaptureMode::Relaxed {
            return Ok(());
        }
        let thread = std::thread::current().id();
        let captures = self.streams.values_mut().filter_map(|stream| stream.capture.as_mut());
        let hit = captures.filter(|capture| match capture.mode {
            CaptureMode::Global => true,
            CaptureMode::ThreadLocal => capture.thread == thread,
            CaptureMode::Relaxed => false,
        });
        match hit.map(|capture| capture.broken = true).count() {
            0 => Ok(()),
            _ => Err(Code::CaptureUnsupported),
        }
    }

    /// A copy of a graph that can be launched and outlives it.
    pub(crate) fn graph_instantiate(&mut self, graph: Handle) -> Result<Handle> {
        let launches = self.graphs.get(&graph).ok_or(Code::InvalidValue)?.clone();
        let handle = self.handle();
        self.graphs.insert(handle, launches);
        Ok(handle)
    }

    pub(crate) fn graph_destroy(&mut self, graph: Handle) -> Result<()> {
        self.graphs.remove(&graph).map(drop).ok_or(Code::InvalidValue)
    }

    pub(crate) fn graph_launch(&mut self, graph: Handle, stream: Handle) -> Result<()> {
        let launches = self.graphs.get(&graph).ok_or(Code::InvalidValue)?.clone();
        if self.stream(stream)?.capture.is_some() {
            return Err(Code::NotSupported);
        }
        self.give(stream, launches.into_iter().map(Work::Launch));
        Ok(())
    }

    // Events

    pub(crate) fn event_create(&mut self) -> Handle {
        let handle = self.handle();
        self.events.insert(handle, Event::default());
        handle
    }

    pub(crate) fn event_destroy(&mut self, event: Handle) -> Result<()> {
        self.events.remove(&event).map(drop).ok_or(Code::InvalidHandle)
    }

    pub(crate) fn event_record(&mut self, event: Handle, stream: Handle) -> Result<()> {
        if !self.events.contains_key(&event) {
            return Err(Code::InvalidHandle);
        }
        let recorded = if self.stream(stream)?.capture.is_some() {
            Recorded::Captured(stream)
        } else {
            self.give(stream, [Work::Record(event)]);
            Recorded::At(self.end(stream)?, None)
        };
        self.events.insert(event, Event { recorded: Some(recorded) });
        Ok(())
    }

    /// Answers for now, and does a piece of the work, so that asking again and again comes to an end.
    pub(crate) fn event_query(&mut self, event: Handle) -> Result<()> {
        let Some(point) = self.event_point(event)? else { return Ok(()) };
        if self.is_done(point) {
            return Ok(());
        }
        let done = self.stream(point.stream)?.done + 1;
        self.advance(Point { done, ..point });
        self.check()?;
        Err(Code::NotReady)
    }

    pub(crate) fn event_synchronize(&mut self, event: Handle) -> Result<()> {
        if let Some(point) = self.event_point(event)? {
            self.advance(point);
        }
        self.check()
    }

    pub(crate) fn event_elapsed(&mut self, start: Handle, end: Handle) -> Result<f32> {
        let time = |event| match self.events.get(&event).ok_or(Code::InvalidHandle)?.recorded {
            Some(Recorded::At(_, time)) => time.ok_or(Code::NotReady),
            _ => Err(Code::InvalidHandle),
        };
        let (start, end) = (time(start)?, time(end)?);
        let seconds = match end.checked_duration_since(start) {
            Some(after) => after.as_secs_f32(),
            None => -(start - end).as_secs_f32(),
        };
        Ok(seconds * 1e3)
    }

    /// Where it was recorded, if it was.
    fn event_point(&self, event: Handle) -> Result<Option<Point>> {
        match self.events.get(&event).ok_or(Code::InvalidHandle)?.recorded {
            None => Ok(None),
            Some(Recorded::At(point, _)) => Ok(Some(point)),
            Some(Recorded::Captured(_)) => Err(Code::CapturedEvent),
        }
    }
}

/// The drivers' code for what the emulator says.
pub(crate) fn code(error: Error) -> Code {
    match error {
        Error::OutOfMemory { .. } => Code::OutOfMemory,
        Error::UnknownKernel { .. } => Code::NotFound,
        Error::OtherArch { .. } => Code::NoBinary,
        Error::Load { .. } => Code::InvalidImage,
        Error::Fault(fault) if matches!(fault.kind, FaultKind::GlobalOutOfBounds { .. }) => Code::IllegalAddress,
        Error::Fault(_) => Code::LaunchFailed,
        // A bad address or size.
        _ => Code::InvalidValue,
    }
}
