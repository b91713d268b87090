//! Ratios of speed: figure 6.1 of the thesis and the same here, and what this store is meant to
//! reach beside each of the others.

use serde::Serialize;

use super::Mode;
use super::contender::Kind;
use super::report::Report;
use super::thesis::TABLES;

/// The ratio that a row is meant to reach, by the medians of interleaved runs.
struct Goal {
    mode: Mode,
    of: Kind,
    to: Kind,
    floor: f64,
    aim: f64,
}

const fn goal(mode: Mode, of: Kind, to: Kind, floor: f64, aim: f64) -> Goal {
    Goal { mode, of, to, floor, aim }
}

const GOALS: [Goal; 9] = [
    goal(Mode::NewConnection, Kind::Cortex, Kind::Redis, 0.95, 1.2),
    goal(Mode::NewConnection, Kind::Cortex, Kind::Etcd, 3.5, 4.5),
    goal(Mode::NewConnection, Kind::Cortex, Kind::Postgresql, 25.0, 35.0),
    goal(Mode::NewConnection, Kind::Cortex, Kind::Sqlite, 6.0, 8.0),
    goal(Mode::Persistent, Kind::Cortex, Kind::Redis, 1.0, 1.3),
    goal(Mode::Persistent, Kind::Cortex, Kind::Etcd, 4.0, 6.0),
    goal(Mode::Persistent, Kind::Cortex, Kind::Postgresql, 1.5, 2.0),
    goal(Mode::NewConnection, Kind::CortexPair, Kind::Cortex, 0.6, 0.8),
    goal(Mode::Persistent, Kind::CortexPair, Kind::Cortex, 0.6, 0.8),
];

/// One goal with its ratios at all numbers of workers.
#[derive(Debug, Serialize)]
pub struct Reached {
    pub mode: Mode,
    pub of: Kind,
    pub to: Kind,
    pub floor: f64,
    pub aim: f64,
    pub ratios: Vec<Ratio>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub workers: usize,
    pub times: f64,
}

impl Reached {
    /// Says whether the worst of its ratios is above the floor, and above the aim.
    pub fn word(&self) -> &'static str {
        let worst = self.ratios.iter().map(|ratio| ratio.times).fold(f64::INFINITY, f64::min);
        match worst {
            worst if worst >= self.aim => "aim reached",
            worst if worst >= self.floor => "floor reached",
            _ => "BELOW THE FLOOR",
        }
    }
}

pub fn reached(report: &Report) -> Vec<Reached> {
    let reached = GOALS.iter().map(|goal| Reached {
        mode: goal.mode,
        of: goal.of,
        to: goal.to,
        floor: goal.floor,
        aim: goal.aim,
        ratios: here(report, goal.mode, goal.of, goal.to),
    });
    reached.filter(|reached| !reached.ratios.is_empty()).collect()
}

/// Returns the ratios of medians at every number of workers that both have.
pub fn here(report: &Report, mode: Mode, of: Kind, to: Kind) -> Vec<Ratio> {
    let ratio = |workers: usize| {
        let rate = |kind| Some(report.sum(mode, workers, kind)?.operations_per_second.median);
        Some(Ratio { workers, times: rate(of)? / rate(to)? })
    };
    report.plan.workers.iter().filter_map(|workers| ratio(*workers)).collect()
}

/// Returns figure 6.1: the thesis's store beside the other ones.
pub fn of_the_thesis() -> Vec<(&'static str, Vec<Ratio>)> {
    let [own, others @ ..] = &TABLES;
    let beside = others.iter().map(|table| {
        let ratios = table.columns.iter().filter_map(|column| {
            let times = own.at(column.workers)?.rate / column.rate;
            Some(Ratio { workers: column.workers, times })
        });
        (table.store, ratios.collect())
    });
    beside.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thesis's text says: more than one and a half times as fast as MongoDB, and more than
    /// three times as fast as PostgreSQL, for 10 connections.
    #[test]
    fn the_thesis_says_what_its_tables_say() {
        let figure = of_the_thesis();
        let at = |store: &str| {
            let (_, ratios) = figure.iter().find(|(name, _)| *name == store).unwrap();
            ratios.iter().map(|ratio| (ratio.times * 100.0).round() / 100.0).collect::<Vec<_>>()
        };
        assert_eq!(at("MongoDB"), [1.62, 1.47, 1.43]);
        assert_eq!(at("PostgreSQL"), [3.38, 2.44, 1.98]);
        assert_eq!(at("SQLite"), [88.45, 93.62]);
    }

    #[test]
    fn the_worst_ratio_counts() {
        let reached = |times: [f64; 2]| Reached {
            mode: Mode::Persistent,
            of: Kind::Cortex,
            to: Kind::Redis,
            floor: 1.0,
            aim: 1.3,
            ratios: times.map(|times| Ratio { workers: 10, times }).to_vec(),
        };
        assert_eq!(reached([1.3, 2.0]).word(), "aim reached");
        assert_eq!(reached([1.0, 2.0]).word(), "floor reached");
        assert_eq!(reached([2.0, 0.99]).word(), "BELOW THE FLOOR");
    }
}
