//! Progress of tasks that run side by side: spinners on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// A group of running tasks.
pub(crate) struct Progress(Option<MultiProgress>);

/// One running task.
pub(crate) struct Task {
    name: String,
    start: Instant,
    spinner: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self(stderr().is_terminal().then(MultiProgress::new))
    }

    pub(crate) fn task(&self, name: &str) -> Task {
        let spinner = self.0.as_ref().map(|group| {
            let style = ProgressStyle::with_template("{spinner} {prefix:8} {elapsed:>4} {msg}").expect("a constant");
            let spinner = group.add(ProgressBar::new_spinner().with_style(style).with_prefix(name.to_owned()));
            spinner.enable_steady_tick(Duration::from_millis(100));
            spinner
        });
        Task { name: name.into(), start: Instant::now(), spinner }
    }
}

impl Task {
    /// Shows what the task is doing now.
    pub(crate) fn say(&self, message: &str) {
        match &self.spinner {
            Some(spinner) => spinner.set_message(message.to_owned()),
            None => eprintln!("{}: {message}", self.name),
        }
    }

    /// Prints lines that stay, above the running tasks.
    pub(crate) fn print(&self, text: &str) {
        match &self.spinner {
            Some(spinner) => spinner.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Ends the task with a last message.
    pub(crate) fn done(&self, message: &str) {
        match &self.spinner {
            Some(spinner) => spinner.finish_with_message(message.to_owned()),
            None => eprintln!("{}: {message} ({:.1} s)", self.name, self.start.elapsed().as_secs_f32()),
        }
    }
}
