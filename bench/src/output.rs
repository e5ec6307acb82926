//! Where results go: files, tables, and the progress until then.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::plot::Plot;

/// Files of tables that results go to, beside the table on the terminal.
#[derive(Args)]
pub(crate) struct Tables {
    /// Write the table as CSV, too.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write everything that was found out as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Files that results go to, beside the table on the terminal.
#[derive(Args)]
pub(crate) struct Files {
    #[command(flatten)]
    tables: Tables,
    /// Draw bandwidth against splits, with the read ceiling as a line.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl Tables {
    /// Writes what was asked for.
    pub(crate) fn write(&self, csv: &str, report: &impl Serialize) -> Result<()> {
        if let Some(path) = &self.csv {
            write(path, csv)?;
        }
        if let Some(path) = &self.json {
            write(path, &(serde_json::to_string_pretty(report)? + "\n"))?;
        }
        Ok(())
    }
}

impl Files {
    /// Writes what was asked for.
    pub(crate) fn write(&self, csv: &str, report: &impl Serialize, plot: &Plot) -> Result<()> {
        self.tables.write(csv, report)?;
        if let Some(path) = &self.plot {
            write(path, &plot.svg()?)?;
        }
        Ok(())
    }
}

fn write(path: &Path, contents: &str) -> Result<()> {
    fs::write(path, contents).with_context(|| format!("writing {}", path.display()))
}

/// A table without lines; columns from number `text` on are numbers.
pub(crate) fn table<'a>(
    header: impl IntoIterator<Item = &'a str>,
    text: usize,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if index >= text {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A progress bar on a terminal's error output; nothing where that is no terminal.
pub(crate) fn progress(what: &'static str, steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {elapsed} (left: {eta}) {msg}");
    let bar = ProgressBar::new(steps as u64).with_style(style.expect("a constant")).with_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
