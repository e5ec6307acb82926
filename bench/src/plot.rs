//! Bandwidth against splits, as an SVG picture.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Width and height in pixels.
const SIZE: (u32, u32) = (1100, 560);
/// Room for the names of the lines, as a share of the axis of splits.
const LEGEND: f64 = 0.34;

/// A picture: a line a problem, and the read ceiling. Bandwidths are in GB/s.
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) series: Vec<Series>,
    /// Where there is none, nothing was timed.
    pub(crate) ceiling: Option<f64>,
}

/// A problem's line.
pub(crate) struct Series {
    pub(crate) name: String,
    /// Splits and bandwidth.
    pub(crate) points: Vec<(u32, f64)>,
    /// The automatic choice.
    pub(crate) auto: Option<(u32, f64)>,
}

impl Plot {
    /// The picture.
    pub(crate) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, SIZE)).map_err(|error| anyhow!("drawing the plot: {error}"))?;
        Ok(svg)
    }

    fn draw(
        &self,
        backend: SVGBackend<'_>,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'_> as DrawingBackend>::ErrorType>> {
        let area = backend.into_drawing_area();
        area.fill(&WHITE)?;
        let bandwidths =
            self.series.iter().flat_map(|series| series.points.iter().chain(&series.auto)).map(|point| point.1);
        let highest = bandwidths.chain(self.ceiling).fold(0.0, f64::max).max(1.0) * 1.12;
        let most = self.series.iter().flat_map(|series| &series.points).map(|point| point.0).max().unwrap_or(1);
        // The axis counts doublings.
        let doublings = f64::from(most).log2().ceil().max(1.0);
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(-0.2..doublings * (1.0 + LEGEND), 0.0..highest)?;
        let shown = |x: f64| x.fract() == 0.0 && x <= doublings;
        let splits = |x: &f64| if shown(*x) { format!("{}", x.exp2()) } else { String::new() };
        chart
            .configure_mesh()
            .x_desc("splits")
            .y_desc("GB/s")
            .disable_x_mesh()
            .x_labels((doublings * (1.0 + LEGEND)) as usize + 2)
            .x_label_formatter(&splits)
            .y_label_formatter(&|y| format!("{y:.0}"))
            .light_line_style(WHITE)
            .draw()?;
        if let Some(ceiling) = self.ceiling {
            let ends = [(-0.2, ceiling), (doublings + 0.2, ceiling)];
            chart
                .draw_series(DashedLineSeries::new(ends, 8, 5, BLACK.stroke_width(2)))?
                .label(format!("read ceiling {ceiling:.0} GB/s"))
                .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLACK.stroke_width(2)));
        }
        for (index, series) in self.series.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let at = |&(splits, bandwidth): &(u32, f64)| (f64::from(splits).log2(), bandwidth);
            chart
                .draw_series(LineSeries::new(series.points.iter().map(at), color.stroke_width(2)).point_size(3))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
            chart.draw_series(series.auto.iter().map(|auto| Circle::new(at(auto), 7, color.stroke_width(2))))?;
        }
        if self.series.iter().any(|series| series.auto.is_some()) {
            let legend = chart.draw_series(std::iter::empty::<Circle<(f64, f64), i32>>())?.label("automatic choice");
            legend.legend(|(x, y)| Circle::new((x + 9, y), 6, BLACK.stroke_width(1)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn the_plot_has_every_line_and_the_ceiling() {
        let series = |name: &str| Series {
            name: name.into(),
            points: vec![(1, 400.0), (2, 800.0), (12, 4000.0), (128, 3900.0)],
            auto: Some((16, 4100.0)),
        };
        let plot = Plot {
            title: "A title".into(),
            series: vec![series("one"), series("two"), series("B1 Q70 K16384 H12/12 D192/128")],
            ceiling: Some(4577.0),
        };
        let svg = plot.svg().unwrap();
        for text in ["read ceiling 4577 GB/s", "A title", "one", "two", "automatic choice", "splits", "GB/s", "128"] {
            assert!(svg.lines().any(|line| line.trim() == text), "no {text} in {svg}");
        }
        let circles = svg.matches("<circle").count();
        assert_eq!(circles, 3 * (4 + 1) + 1, "points, automatic choices and one in the legend");
    }

    #[test]
    fn nothing_timed_is_a_picture_as_well() {
        let plot = Plot { title: "Nothing".into(), series: Vec::new(), ceiling: None };
        let svg = plot.svg().unwrap();
        assert!(!svg.contains("ceiling") && svg.ends_with("</svg>\n"), "{svg}");
    }
}
