//! What was measured of decodes, and how it is shown.

use anyhow::Result;
use serde::Serialize;

use crate::candidate::Choice;
use crate::output::table;
use crate::plot::{Plot, Series};
use crate::reference::Checked;
use crate::work::Sizes;

/// The automatic choice is good enough within this factor of the best explicit one, or so many microseconds.
const FACTOR: f64 = 1.03;
const MICROS: f64 = 0.3;

/// A time and what it means.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// auto, explicit, best, or a peer.
    pub(crate) who: String,
    /// Splits and kernel, or a peer's way.
    pub(crate) choice: String,
    pub(crate) num_splits: Option<u32>,
    /// Median, a call.
    pub(crate) micros: Option<f64>,
    pub(crate) gigabytes_per_second: Option<f64>,
    pub(crate) percent_of_ceiling: Option<f64>,
    pub(crate) correct: Option<bool>,
    /// Largest error against the reference.
    pub(crate) error: Option<f64>,
    /// The first value that is wrong.
    pub(crate) wrong: Option<String>,
}

impl Figure {
    pub(crate) fn named(who: &str, choice: String) -> Self {
        Self {
            who: who.into(),
            choice,
            num_splits: None,
            micros: None,
            gigabytes_per_second: None,
            percent_of_ceiling: None,
            correct: None,
            error: None,
            wrong: None,
        }
    }

    pub(crate) fn of(choice: &Choice) -> Self {
        let who = if choice.auto { "auto" } else { "explicit" };
        let words = format!("{} {}", choice.num_splits, choice.short_kernel());
        Self { num_splits: Some(choice.num_splits), ..Self::named(who, words) }
    }

    pub(crate) fn checked(&mut self, checked: Option<Checked>) {
        self.correct = checked.as_ref().map(|checked| checked.wrong.is_none());
        self.error = checked.as_ref().map(|checked| checked.error);
        self.wrong = checked.and_then(|checked| checked.wrong);
    }

    pub(crate) fn took(&mut self, micros: f64, bytes: f64, ceiling: f64) {
        let bandwidth = bytes / micros * 1e6;
        self.micros = Some(micros);
        self.gigabytes_per_second = Some(bandwidth / 1e9);
        self.percent_of_ceiling = Some(bandwidth / ceiling * 100.0);
    }
}

/// All that is known of one shape.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) shape: String,
    pub(crate) sizes: Sizes,
    pub(crate) auto: Figure,
    /// The fastest explicit choice, timed in rounds with the automatic one.
    pub(crate) best: Option<Figure>,
    /// Every explicit choice, timed quickly.
    pub(crate) sweep: Vec<Figure>,
    pub(crate) peers: Vec<Figure>,
    /// Peers without a time for this shape, and why.
    pub(crate) absent: Vec<(String, String)>,
}

impl Measured {
    /// The automatic choice's time over another's.
    fn ratio(&self, other: &Figure) -> Option<f64> {
        Some(self.auto.micros? / other.micros?)
    }

    /// Whether the automatic choice is good enough, where both were timed.
    pub(crate) fn within(&self) -> Option<bool> {
        let (auto, best) = (self.auto.micros?, self.best.as_ref()?.micros?);
        Some(auto <= best * FACTOR || auto - best <= MICROS)
    }

    /// The first wrong value.
    pub(crate) fn wrong(&self) -> Option<&str> {
        let own = std::iter::once(&self.auto).chain(&self.sweep);
        own.filter_map(|figure| figure.wrong.as_deref()).next()
    }

    fn figures(&self, all: bool) -> impl Iterator<Item = &Figure> {
        let sweep = self.sweep.iter().filter(move |_| all);
        std::iter::once(&self.auto).chain(&self.best).chain(&self.peers).chain(sweep)
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

/// Below each shape a line a figure: the automatic choice, the best explicit one, the peers, and on demand every
/// explicit choice.
pub(crate) fn figures(shapes: &[Measured], all: bool) -> String {
    let row = |shape: &Measured, figure: &Figure| {
        vec![
            format!("  {}", figure.who),
            figure.choice.clone(),
            number(figure.micros, 2),
            number(figure.gigabytes_per_second, 0),
            number(figure.percent_of_ceiling, 1),
            number(shape.ratio(figure), 3),
        ]
    };
    let rows = shapes.iter().flat_map(|shape| shape.figures(all).map(move |figure| row(shape, figure)));
    let table = table(["", "choice", "us", "GB/s", "% of ceiling", "auto/it"], 2, rows).to_string();
    let mut lines = table.lines();
    let mut text = lines.next().unwrap_or_default().to_owned();
    for shape in shapes {
        text += &format!("\n{}  {}", shape.shape, verdict(shape));
        lines.by_ref().take(shape.figures(all).count()).for_each(|line| text += &format!("\n{line}"));
    }
    text
}

/// A line a shape: the automatic choice and the best explicit one.
pub(crate) fn verdicts(shapes: &[Measured]) -> String {
    let row = |shape: &Measured| {
        let best = shape.best.as_ref();
        let splits = |figure: Option<&Figure>| {
            figure.and_then(|figure| figure.num_splits).map_or("-".into(), |splits| splits.to_string())
        };
        vec![
            shape.shape.clone(),
            splits(Some(&shape.auto)),
            number(shape.auto.micros, 2),
            number(shape.auto.percent_of_ceiling, 1),
            splits(best),
            number(best.and_then(|best| best.micros), 2),
            number(best.and_then(|best| shape.ratio(best)), 3),
            verdict(shape).into(),
        ]
    };
    table(["shape", "auto", "us", "% ceil.", "best", "us", "ratio", ""], 1, shapes.iter().map(row)).to_string()
}

fn verdict(shape: &Measured) -> &'static str {
    match (shape.wrong(), shape.within()) {
        (Some(_), _) => "WRONG",
        (None, Some(true)) => "pass",
        (None, Some(false)) => "FAIL",
        (None, None) => "",
    }
}

/// Lines below the table: why peers have no time, and the count.
pub(crate) fn notes(shapes: &[Measured]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for shape in shapes {
        for (peer, why) in &shape.absent {
            notes.push(format!("{}: no time of {peer}: {why}", shape.shape));
        }
    }
    let judged: Vec<bool> = shapes.iter().filter_map(Measured::within).collect();
    if !judged.is_empty() {
        let passed = judged.iter().filter(|&&within| within).count();
        notes.push(format!(
            "auto is within {:.0} % or {MICROS} us of the best explicit choice: {passed} of {} shapes pass",
            (FACTOR - 1.0) * 100.0,
            judged.len()
        ));
    }
    notes
}

/// The table as CSV, all figures in it.
pub(crate) fn csv(shapes: &[Measured]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "shape",
        "who",
        "choice",
        "num_splits",
        "us",
        "gb_per_s",
        "percent_of_ceiling",
        "auto_over_it",
        "within",
        "correctness",
    ])?;
    for shape in shapes {
        for figure in shape.figures(true) {
            let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
            let truth = |value: Option<bool>| match value {
                Some(true) => "True",
                Some(false) => "False",
                None => "",
            };
            writer.write_record([
                shape.shape.as_str(),
                &figure.who,
                &figure.choice,
                &figure.num_splits.map_or(String::new(), |splits| splits.to_string()),
                &number(figure.micros),
                &number(figure.gigabytes_per_second),
                &number(figure.percent_of_ceiling),
                &number(shape.ratio(figure)),
                if figure.who == "auto" { truth(shape.within()) } else { "" },
                truth(figure.correct),
            ])?;
        }
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// A line a shape.
pub(crate) fn plot(shapes: &[Measured], title: String, ceiling: Option<f64>) -> Plot {
    let point = |figure: &Figure| Some((figure.num_splits?, figure.gigabytes_per_second?));
    let series = |shape: &Measured| Series {
        name: shape.shape.clone(),
        points: shape.sweep.iter().filter_map(point).collect(),
        auto: point(&shape.auto),
    };
    let series = shapes.iter().map(series).filter(|series| !series.points.is_empty()).collect();
    Plot { title, series, ceiling: ceiling.map(|ceiling| ceiling / 1e9) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use splitkv::{DType, Problem};

    fn measured(auto: f64, best: f64) -> Measured {
        let problem = Problem::new(256, 512, 32, 70, 131_072, 192, DType::Bf16).head_dim_v(128);
        let figure = |auto, num_splits, micros| {
            let kernel = "attention_bf16_d192x128_sharedkv_q2";
            let mut figure = Figure::of(&Choice { auto, num_splits, kernel, q_tiles: 2 });
            figure.checked(Some(Checked { error: 1e-3, wrong: None }));
            figure.took(micros, 1e9, 4e12);
            figure
        };
        let mut peer = Figure::named("flashinfer", "prefill fa3".into());
        peer.took(best * 2.0, 1e9, 4e12);
        Measured {
            shape: crate::work::describe(&problem),
            sizes: Sizes::of(&problem),
            auto: figure(true, 100, auto),
            best: Some(Figure { who: "best".into(), ..figure(false, 128, best) }),
            sweep: vec![figure(false, 1, 900.0), figure(false, 128, best)],
            peers: vec![peer],
            absent: vec![("flash".into(), "no kernel".into())],
        }
    }

    #[test]
    fn good_enough_is_three_percent_or_a_third_of_a_microsecond() {
        let within = |auto, best| measured(auto, best).within();
        assert_eq!(within(103.0, 100.0), Some(true));
        assert_eq!(within(103.1, 100.0), Some(false));
        assert_eq!(within(5.29, 5.0), Some(true));
        assert_eq!(within(5.31, 5.0), Some(false));
        assert_eq!(Measured { best: None, ..measured(1.0, 1.0) }.within(), None);
    }

    #[test]
    fn figures_are_ratios_of_the_ceiling() {
        let auto = measured(500.0, 400.0).auto;
        assert_eq!(auto.gigabytes_per_second, Some(2000.0));
        assert_eq!(auto.percent_of_ceiling, Some(50.0));
        assert_eq!(auto.choice, "100 sharedkv_q2");
    }

    #[test]
    fn tables_fit_a_terminal() {
        let mut shape = measured(123_456.0, 123_455.0);
        shape.shape = "B256 Q1 K~131072 H512/32 D128".into();
        let shapes = [shape];
        for text in [verdicts(&shapes), figures(&shapes, false), figures(&shapes, true)] {
            assert!(text.lines().all(|line| line.trim_end().chars().count() <= 80), "{text}");
            assert!(text.contains("pass"), "{text}");
        }
    }

    #[test]
    fn the_table_has_auto_best_and_peers() {
        let shapes = [measured(500.0, 400.0)];
        let text = figures(&shapes, false);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["B256", "Q70", "K131072", "H512/32", "D192/128", "FAIL"]);
        assert_eq!(rows[2], ["auto", "100", "sharedkv_q2", "500.00", "2000", "50.0", "1.000"]);
        assert_eq!(rows[3], ["best", "128", "sharedkv_q2", "400.00", "2500", "62.5", "1.250"]);
        assert_eq!(rows[4], ["flashinfer", "prefill", "fa3", "800.00", "1250", "31.2", "0.625"]);
        assert_eq!(rows.len(), 5);
        assert_eq!(figures(&shapes, true).lines().count(), 7);
        let brief = verdicts(&shapes);
        assert!(brief.lines().nth(1).unwrap().trim_end().ends_with("1.250 FAIL"), "{brief}");
        let notes = notes(&[measured(500.0, 400.0), measured(1.0, 1.0)]);
        assert_eq!(notes[0], "B256 Q70 K131072 H512/32 D192/128: no time of flash: no kernel");
        assert_eq!(notes[2], "auto is within 3 % or 0.3 us of the best explicit choice: 1 of 2 shapes pass");
    }

    #[test]
    fn the_csv_has_every_figure() {
        let text = csv(&[measured(500.0, 400.0)]).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(
            rows[0],
            "shape,who,choice,num_splits,us,gb_per_s,percent_of_ceiling,auto_over_it,within,correctness"
        );
        let shape = "B256 Q70 K131072 H512/32 D192/128";
        assert_eq!(rows[1], format!("{shape},auto,100 sharedkv_q2,100,500.0000,2000.0000,50.0000,1.0000,False,True"));
        assert_eq!(rows[3], format!("{shape},flashinfer,prefill fa3,,800.0000,1250.0000,31.2500,0.6250,,"));
        assert_eq!(rows.len(), 1 + 5);
    }

    #[test]
    fn the_plot_has_a_line_a_shape_and_the_ceiling() {
        let plot = plot(&[measured(500.0, 400.0)], "title".into(), Some(4.6e12));
        assert_eq!(plot.series[0].points, [(1, 1e9 / 900.0 / 1e3), (128, 2500.0)]);
        assert_eq!(plot.series[0].auto, Some((100, 2000.0)));
        assert!(plot.svg().unwrap().contains("read ceiling 4600 GB/s"));
    }
}
