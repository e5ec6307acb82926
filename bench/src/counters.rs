//! What launches on emulated devices count.

use std::fs;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use splitkv::{Device, LaunchCounters};
use splitkv_tests::gauge::{self, Gauge, Move};
use splitkv_tests::site::Site;

#[derive(Args)]
pub(crate) struct Counters {
    /// Take what was counted over into the committed file.
    #[arg(long)]
    accept: bool,
}

impl Counters {
    pub(crate) fn run(&self) -> Result<()> {
        let names = Device::list().into_iter().map(|info| info.name).filter(|name| name.starts_with("emulator:"));
        let sites = names.map(|name| Site::open(&name)).collect::<splitkv::Result<Vec<_>>>()?;
        let new = Gauge::measure(&sites.iter().collect::<Vec<_>>()).map_err(|error| anyhow!(error))?;
        // A file that cannot be read is replaced as a whole.
        let old = match Gauge::committed() {
            Ok(old) => old,
            Err(error) if self.accept => {
                println!("{}: {error}", gauge::FILE);
                Gauge(Vec::new())
            }
            Err(error) => bail!("{}: {error}; --accept writes it anew", gauge::FILE),
        };
        if old == new {
            println!("Nothing moved: {} problems on {} devices.", new.0.len(), sites.len());
            return Ok(());
        }
        let moves = old.moves(&new);
        println!("{}", moved(&moves));
        if self.accept {
            fs::write(gauge::FILE, new.to_json()?)?;
            println!("Wrote {}.", gauge::FILE);
            return Ok(());
        }
        match moves.len() {
            0 => bail!("the description of the problems changed; --accept takes it over"),
            count => bail!("{count} counters moved; --accept takes them over"),
        }
    }
}

fn moved(moves: &[Move]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["problem", "device", "kernel", "counter", "old", "new", "change"]);
    let number = |value: Option<u64>| value.map_or("-".into(), |value| value.to_string());
    for change in moves {
        let Move { problem, device, kernel, counter, old, new } = change;
        let row = [problem, device, kernel, *counter, &number(*old), &number(*new), &change.change()];
        table.add_row(row);
    }
    align_right(&mut table, 4);
    table
}

/// A column for each launch, a row for each counter.
pub(crate) fn of_launches(launches: &[LaunchCounters]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(std::iter::once("counter").chain(launches.iter().map(|launch| launch.kernel.as_str())));
    let columns: Vec<Vec<_>> = launches.iter().map(|launch| launch.counters.entries().collect()).collect();
    for row in 0..columns.first().map_or(0, Vec::len) {
        let name = columns[0][row].0.replace('_', " ");
        table.add_row(std::iter::once(name).chain(columns.iter().map(|column| column[row].1.to_string())));
    }
    align_right(&mut table, 1);
    table
}

fn align_right(table: &mut Table, from: usize) {
    table.column_iter_mut().skip(from).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_columns() {
        let launch = |kernel: &str, blocks, bank_conflicts| LaunchCounters {
            kernel: kernel.into(),
            counters: splitkv::emulator::Counters { blocks, bank_conflicts, ..Default::default() },
        };
        let table = of_launches(&[launch("attention", 8, 12), launch("combine", 2, 0)]).to_string();
        let words: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["counter", "attention", "combine"]);
        assert_eq!(words[1], ["blocks", "8", "2"]);
        assert!(words.contains(&vec!["bank", "conflicts", "12", "0"]), "{table}");
        assert_eq!(of_launches(&[]).to_string().trim(), "counter");
    }
}
