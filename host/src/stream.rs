//! Order of work on a device: streams, events, graphs.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::driver::Handle;
use crate::{Device, Error, Result};

/// Something that work on the device needs until it is done.
pub(crate) type Held = Arc<dyn Any + Send + Sync>;

/// How many things a stream holds before it looks which of them are done with.
const HELD: usize = 64;

/// A queue of work, done in order. Clones are the same queue.
///
/// A stream holds the memory and the kernels that its work uses until it sees that the work is done: when it is
/// synchronized, now and then when more work is added, and when the last clone is dropped, which waits.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    device: Device,
    handle: Handle,
    /// Who destroys the stream, where someone else made it.
    owner: Option<Held>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What the graph will hold that is being captured.
    captured: Option<HashMap<usize, Held>>,
    /// What the newest work needs, by address.
    newest: HashMap<usize, Held>,
    /// What older work needs, until the event.
    older: VecDeque<(Event, HashMap<usize, Held>)>,
}

impl Device {
    /// Makes a stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream(&self) -> Result<Stream> {
        Ok(Stream::from_handle(self, self.driver().stream_create()?, None))
    }
}

impl Stream {
    pub(crate) fn from_handle(device: &Device, handle: Handle, owner: Option<Held>) -> Self {
        Self(Arc::new(Inner { device: device.clone(), handle, owner, state: Mutex::default() }))
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits until its work is done.
    ///
    /// # Errors
    /// What the driver says; faults of the work come out here.
    pub fn synchronize(&self) -> Result<()> {
        // Not locked while waiting: other threads may give more work.
        let mut state = self.0.state();
        let (newest, older) = (std::mem::take(&mut state.newest), std::mem::take(&mut state.older));
        drop(state);
        // SAFETY: the stream lives.
        let waited = unsafe { self.driver().stream_synchronize(self.0.handle) };
        if waited.is_err() {
            // It may not have waited, so the work may still need them.
            let held = older.into_iter().flat_map(|(_, held)| held).chain(newest);
            self.0.state().newest.extend(held);
        }
        waited
    }

    /// An event that is done when the work given so far is done.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record(&self) -> Result<Event> {
        let event = Event::new(&self.0.device)?;
        // SAFETY: both live, on one device.
        unsafe { self.driver().event_record(event.0.handle, self.0.handle) }?;
        Ok(event)
    }

    /// Lets work given from now on wait for `event`.
    ///
    /// # Errors
    /// [`Error::Argument`] for another device's event, or what the driver says.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.0.device.check_same("event", &event.0.device)?;
        // SAFETY: both live, on one device.
        unsafe { self.driver().stream_wait(self.0.handle, event.0.handle) }
    }

    /// Records the work that `body` gives to this stream, without executing it. The graph holds what the work
    /// needs.
    ///
    /// # Errors
    /// [`Error::Argument`] where the stream is being captured already; what `body` or the driver says.
    pub fn capture(&self, body: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let capture = Capture::begin(self)?;
        body()?;
        capture.end()
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0.handle
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.0.handle == other.0.handle && self.0.device.id() == other.0.device.id()
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.0.state().captured.is_some()
    }

    /// Keeps `held` for the work that is given next.
    pub(crate) fn hold(&self, held: impl IntoIterator<Item = Held>) -> Result<()> {
        let mut state = self.0.state();
        let held = held.into_iter().map(|held| (Arc::as_ptr(&held).cast::<()>() as usize, held));
        if let Some(captured) = &mut state.captured {
            captured.extend(held);
            return Ok(());
        }
        if state.newest.len() >= HELD {
            let event = self.record()?;
            let done = std::mem::take(&mut state.newest);
            state.older.push_back((event, done));
            while let Some((event, _)) = state.older.front()
                && event.is_done()?
            {
                state.older.pop_front();
            }
        }
        state.newest.extend(held);
        Ok(())
    }

    fn driver(&self) -> &dyn crate::driver::Driver {
        self.0.device.driver()
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole after every statement that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let driver = self.device.driver();
        // SAFETY: the stream lives, and nobody else can use it any more through this library. An error of the
        // driver means that its work will not go on.
        unsafe {
            let _ = driver.stream_synchronize(self.handle);
            if self.owner.is_none() {
                driver.stream_destroy(self.handle);
            }
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}, {:#x})", self.0.device.name(), self.0.handle)
    }
}

/// A capture under way; dropped before its end, it is abandoned.
struct Capture<'a> {
    stream: &'a Stream,
    ended: bool,
}

impl<'a> Capture<'a> {
    fn begin(stream: &'a Stream) -> Result<Self> {
        let mut state = stream.0.state();
        if state.captured.is_some() {
            return Err(Error::argument("stream", "one that is being captured", "one that is not"));
        }
        // SAFETY: the stream lives.
        unsafe { stream.driver().capture_begin(stream.0.handle) }?;
        state.captured = Some(HashMap::new());
        Ok(Self { stream, ended: false })
    }

    fn end(mut self) -> Result<Graph> {
        self.ended = true;
        let held = self.stream.0.state().captured.take().unwrap_or_default();
        // SAFETY: the stream lives, and is being captured.
        let handle = unsafe { self.stream.driver().capture_end(self.stream.0.handle) }?;
        Ok(Graph(Arc::new(GraphInner { device: self.stream.0.device.clone(), handle, _held: held })))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.stream.0.state().captured = None;
        // SAFETY: the stream lives, and is being captured; the graph is not used.
        unsafe {
            if let Ok(graph) = self.stream.driver().capture_end(self.stream.0.handle) {
                self.stream.driver().graph_destroy(graph);
            }
        }
    }
}

/// Captured work that can be launched as often as wanted.
#[derive(Clone)]
pub struct Graph(Arc<GraphInner>);

struct GraphInner {
    device: Device,
    handle: Handle,
    _held: HashMap<usize, Held>,
}

impl Graph {
    /// Gives the captured work to `stream`.
    ///
    /// # Errors
    /// [`Error::Argument`] for another device's stream or one that is being captured, or what the driver says.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        self.0.device.check_same("stream", stream.device())?;
        if stream.is_capturing() {
            return Err(Error::argument("stream", "one that is being captured", "one that is not"));
        }
        stream.hold([Arc::clone(&self.0) as Held])?;
        // SAFETY: both live, on one device; the stream holds the graph until it is done.
        unsafe { self.0.device.driver().graph_launch(self.0.handle, stream.handle()) }
    }
}

impl Drop for GraphInner {
    fn drop(&mut self) {
        // SAFETY: streams hold it until they are done with it.
        unsafe { self.device.driver().graph_destroy(self.handle) };
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({}, {:#x})", self.0.device.name(), self.0.handle)
    }
}

/// A point in a stream's work.
#[derive(Clone)]
pub struct Event(Arc<EventInner>);

struct EventInner {
    device: Device,
    handle: Handle,
}

impl Event {
    fn new(device: &Device) -> Result<Self> {
        Ok(Self(Arc::new(EventInner { device: device.clone(), handle: device.driver().event_create()? })))
    }

    /// Whether the work before it is done.
    ///
    /// # Errors
    /// What the driver says.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the event lives.
        unsafe { self.0.device.driver().event_query(self.0.handle) }
    }

    /// Waits until the work before it is done.
    ///
    /// # Errors
    /// What the driver says; faults of the work come out here.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives.
        unsafe { self.0.device.driver().event_synchronize(self.0.handle) }
    }

    /// The device's time from `start` to this event. Waits for both.
    ///
    /// # Errors
    /// [`Error::Argument`] for another device's event, or what the driver says.
    pub fn elapsed_since(&self, start: &Self) -> Result<Duration> {
        self.0.device.check_same("start", &start.0.device)?;
        start.synchronize()?;
        self.synchronize()?;
        // SAFETY: both live, on one device.
        let milliseconds = unsafe { self.0.device.driver().event_elapsed(start.0.handle, self.0.handle) }?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for EventInner {
    fn drop(&mut self) {
        // SAFETY: nobody else uses it; drivers let work that waits for it go on.
        unsafe { self.device.driver().event_destroy(self.handle) };
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({}, {:#x})", self.0.device.name(), self.0.handle)
    }
}
