//! The figures that the thesis printed in its tables 6.1 to 6.4, measured on its two-core machine
//! of 2012 with a new connection for each action and five runs.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Table {
    pub number: &'static str,
    pub store: &'static str,
    pub operations: u32,
    pub columns: &'static [Column],
}

#[derive(Debug, Serialize)]
pub struct Column {
    pub workers: usize,
    pub seconds: &'static [f64],
    pub mean: f64,
    pub deviation: f64,
    /// The requests per second: the operations divided by the mean time.
    pub rate: f64,
}

pub const TABLES: [Table; 4] = [
    Table {
        number: "6.1",
        store: "the thesis's store",
        operations: 30_000,
        columns: &[
            column(10, &[39.709, 39.524, 39.413, 40.700, 40.878], 40.045, 0.690, 749.16),
            column(100, &[71.290, 65.830, 53.877, 43.040, 43.158], 55.439, 12.906, 541.14),
            column(1000, &[77.610, 77.430, 74.840, 77.240, 74.800], 76.384, 1.434, 392.75),
        ],
    },
    Table {
        number: "6.2",
        store: "MongoDB",
        operations: 30_000,
        columns: &[
            column(10, &[60.89, 61.65, 61.64, 61.62, 78.07], 64.77, 7.44, 463.15),
            column(100, &[68.89, 79.56, 82.97, 82.68, 93.66], 81.55, 8.86, 367.86),
            column(1000, &[101.27, 107.93, 109.12, 119.97, 106.97], 109.05, 6.81, 275.10),
        ],
    },
    Table {
        number: "6.3",
        store: "PostgreSQL",
        operations: 30_000,
        columns: &[
            column(10, &[135.03, 136.89, 135.58, 134.78, 135.04], 135.46, 0.85, 221.47),
            column(100, &[135.25, 136.34, 134.99, 135.23, 135.34], 135.43, 0.52, 221.52),
            column(1000, &[153.28, 150.01, 149.47, 152.05, 150.15], 150.99, 1.61, 198.69),
        ],
    },
    Table {
        number: "6.4",
        store: "SQLite",
        operations: 300,
        columns: &[
            column(10, &[36.181, 34.289, 34.570, 35.930, 36.199], 35.434, 0.93, 8.47),
            column(100, &[61.010, 56.493, 42.013, 40.143, 59.775], 51.887, 10.026, 5.78),
        ],
    },
];

const fn column(
    workers: usize,
    seconds: &'static [f64],
    mean: f64,
    deviation: f64,
    rate: f64,
) -> Column {
    Column { workers, seconds, mean, deviation, rate }
}

impl Table {
    pub fn at(&self, workers: usize) -> Option<&Column> {
        self.columns.iter().find(|column| column.workers == workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Summary;

    /// The thesis prints the times of its runs and what follows from them.
    #[test]
    fn the_thesis_itself_is_reproduced() {
        for table in &TABLES {
            for column in table.columns {
                let summary = Summary::of(column.seconds).unwrap();
                // It cut its last digits here, and rounded them there.
                assert!((summary.mean - column.mean).abs() < 0.011, "{} {column:?}", table.store);
                assert!((summary.deviation - column.deviation).abs() < 0.011, "{column:?}");
                let rate = f64::from(table.operations) / summary.mean;
                assert!((rate - column.rate).abs() < 0.3, "{} {column:?} {rate}", table.store);
            }
        }
    }
}
