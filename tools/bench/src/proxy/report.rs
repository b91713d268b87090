//! The report: the figures of all rounds, their medians, and the verdicts that follow from them.

mod table;

use serde::Serialize;

use super::contender::{Contender, Kind};
use super::load::Seen;
use super::workload::{Over, Workload};
use crate::median;

#[derive(Debug, Serialize)]
pub struct Report {
    rounds: u32,
    seconds: u32,
    contenders: Vec<Named>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Named {
    name: &'static str,
    version: String,
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    over: Over,
    /// The number of idle connections; where there are any, memory counts as well.
    idle: usize,
    floor: f64,
    aim: f64,
    nginx_floor: Option<f64>,
    /// The requests per second at which latencies are compared.
    rate: Option<f64>,
    cells: Vec<Cell>,
}

/// Our 99th percentile beside that of the peer whose clients wait least.
struct P99 {
    own: f64,
    best: f64,
    /// The worst round of that peer, which shows how far its figure varies.
    worst_round: f64,
    peer: &'static str,
}

/// The part of the slowest contender's rate that all are asked for. The clients share a core with
/// the backend, and must not be what is waited for.
const PACED_PART: f64 = 0.25;
/// How far a peer's rate in the rounds may differ from its rate alone, as a fraction.
const ALONE_PART_MAX: f64 = 0.1;

/// One contender's figures for one row.
#[derive(Debug, Default, Serialize)]
struct Cell {
    contender: &'static str,
    /// Whether no request failed.
    valid: bool,
    median: Option<Round>,
    /// The rate that the same load gets from a peer while no other contender runs; only set for
    /// peers.
    requests_per_second_alone: Option<f64>,
    rounds: Vec<Round>,
    paced_median: Option<Paced>,
    paced: Vec<Paced>,
}

/// What clients saw at the fixed rate that all contenders were asked at.
#[derive(Clone, Copy, Debug, Serialize)]
struct Paced {
    p50_ms: f64,
    p99_ms: f64,
    errors: u64,
}

impl From<Seen> for Paced {
    fn from(seen: Seen) -> Paced {
        let Seen { p50_ms, p99_ms, errors, .. } = seen;
        Paced { p50_ms, p99_ms, errors }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Round {
    cpu_seconds_per_100k: f64,
    requests_per_cpu_second: f64,
    requests_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    errors: u64,
    resident_kb: u64,
}

impl Round {
    pub fn new(cpu_seconds: f64, resident_kb: u64, seen: Seen) -> Round {
        let requests = seen.requests as f64;
        Round {
            cpu_seconds_per_100k: cpu_seconds / requests * 100_000.0,
            requests_per_cpu_second: requests / cpu_seconds,
            requests_per_second: seen.requests_per_second,
            p50_ms: seen.p50_ms,
            p99_ms: seen.p99_ms,
            errors: seen.errors,
            resident_kb,
        }
    }
}

impl Report {
    pub fn new(
        rounds: u32,
        seconds: u32,
        workloads: &[&Workload],
        contenders: &[Contender],
    ) -> Report {
        let named = contenders
            .iter()
            .map(|one| Named { name: one.kind.name(), version: one.version.clone() });
        Report::of(rounds, seconds, workloads, named.collect())
    }

    fn of(rounds: u32, seconds: u32, workloads: &[&Workload], contenders: Vec<Named>) -> Report {
        let row = |workload: &&Workload| Row {
            name: workload.name,
            over: workload.over,
            idle: workload.idle,
            floor: workload.floor,
            aim: workload.aim,
            nginx_floor: workload.nginx_floor,
            rate: None,
            cells: contenders
                .iter()
                .map(|one| Cell { contender: one.name, ..Cell::default() })
                .collect(),
        };
        Report { rounds, seconds, rows: workloads.iter().map(row).collect(), contenders }
    }

    pub fn add(&mut self, workload: &Workload, contender: usize, round: Round) {
        for row in self.rows.iter_mut().filter(|row| row.name == workload.name) {
            row.cells[contender].add(round);
        }
    }

    pub fn add_alone(&mut self, workload: &Workload, contender: usize, rates: Vec<f64>) {
        for row in self.rows.iter_mut().filter(|row| row.name == workload.name) {
            row.cells[contender].requests_per_second_alone = Some(median(rates.clone()));
        }
    }

    /// Chooses each row's fixed rate, once it is known how fast each contender answers.
    pub fn choose_rates(&mut self) {
        for row in &mut self.rows {
            row.rate = row.slowest().map(|rate| (rate * PACED_PART).round());
        }
    }

    /// Returns the requests per second that all contenders are asked for; `None` if a row has no
    /// valid figures.
    pub fn rate(&self, workload: &Workload) -> Option<f64> {
        self.rows.iter().find(|row| row.name == workload.name)?.rate
    }

    /// Returns the report without the cells of contenders that were not asked.
    pub fn finish(mut self) -> Report {
        for row in &mut self.rows {
            row.cells.retain(|cell| cell.median.is_some());
        }
        self
    }

    pub fn add_paced(&mut self, workload: &Workload, contender: usize, seen: Seen) {
        for row in self.rows.iter_mut().filter(|row| row.name == workload.name) {
            row.cells[contender].add_paced(seen.into());
        }
    }
}

impl Row {
    fn slowest(&self) -> Option<f64> {
        let rates = self.cells.iter().filter_map(Cell::valid_median);
        rates.map(|round| round.requests_per_second).min_by(f64::total_cmp)
    }

    /// Compares 99th percentiles; `of` returns those of all rounds of a cell.
    fn p99(&self, of: impl Fn(&Cell) -> Vec<f64>) -> Option<P99> {
        let of = |cell: &Cell| Some((of(cell), cell.contender)).filter(|_| cell.valid);
        let of = |cell: &Cell| of(cell).filter(|(rounds, _)| !rounds.is_empty());
        let peers = self.peers().filter_map(of).map(|(rounds, peer)| {
            let worst_round = rounds.iter().copied().fold(0.0, f64::max);
            (median(rounds), worst_round, peer)
        });
        let (best, worst_round, peer) = peers.min_by(|a, b| a.0.total_cmp(&b.0))?;
        let own = median(of(self.cell(Kind::Cortex)?)?.0);
        Some(P99 { own, best, worst_round, peer })
    }

    /// Returns the memory of ours and of nginx, in MB.
    fn memory(&self) -> Option<(f64, f64)> {
        let nginx = self.cell(Kind::Nginx)?;
        let of = |cell: &Cell| Some(cell.valid_median()?.resident_kb as f64 / 1024.0);
        Some((of(self.cell(Kind::Cortex)?)?, of(nginx)?))
    }

    /// Returns how many times as many requests it answers as the best peer in the same processor
    /// time, and that peer.
    fn times(&self, kind: Kind) -> Option<(f64, &'static str)> {
        let own = self.cell(kind)?.cost()?;
        let peers = self.peers().filter_map(|peer| Some((peer.cost()? / own, peer.contender)));
        peers.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Returns the same ratio to nginx.
    fn times_nginx(&self) -> Option<f64> {
        Some(self.cell(Kind::Nginx)?.cost()? / self.cell(Kind::Cortex)?.cost()?)
    }

    fn cell(&self, kind: Kind) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.contender == kind.name())
    }

    fn peers(&self) -> impl Iterator<Item = &Cell> {
        let peers = Kind::PEERS.map(Kind::name);
        self.cells.iter().filter(move |cell| peers.contains(&cell.contender))
    }
}

impl Cell {
    fn valid_median(&self) -> Option<Round> {
        self.median.filter(|_| self.valid)
    }

    fn cost(&self) -> Option<f64> {
        Some(self.valid_median()?.cpu_seconds_per_100k).filter(|cost| cost.is_finite())
    }

    fn add(&mut self, round: Round) {
        self.rounds.push(round);
        let of = |value: fn(&Round) -> f64| median(self.rounds.iter().map(value).collect());
        let errors = self.rounds.iter().map(|round| round.errors).sum();
        self.valid = errors == 0;
        self.median = Some(Round {
            cpu_seconds_per_100k: of(|round| round.cpu_seconds_per_100k),
            requests_per_cpu_second: of(|round| round.requests_per_cpu_second),
            requests_per_second: of(|round| round.requests_per_second),
            p50_ms: of(|round| round.p50_ms),
            p99_ms: of(|round| round.p99_ms),
            errors,
            resident_kb: self.rounds.iter().map(|round| round.resident_kb).max().unwrap_or(0),
        });
    }

    fn add_paced(&mut self, paced: Paced) {
        self.paced.push(paced);
        let of = |value: fn(&Paced) -> f64| median(self.paced.iter().map(value).collect());
        let errors = self.paced.iter().map(|paced| paced.errors).sum();
        self.valid &= errors == 0;
        let (p50_ms, p99_ms) = (of(|paced| paced.p50_ms), of(|paced| paced.p99_ms));
        self.paced_median = Some(Paced { p50_ms, p99_ms, errors });
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::WORKLOADS;
    use super::*;

    fn report(costs: &[(&'static str, &[f64])], errors: u64) -> Report {
        let named = costs.iter().map(|(name, _)| Named { name, version: "1.0".into() });
        let rows: Vec<&Workload> = WORKLOADS.iter().collect();
        let mut report = Report::of(3, 1, &rows, named.collect());
        for (index, (_, costs)) in costs.iter().enumerate() {
            for cost in *costs {
                let seen = Seen {
                    requests: 100_000,
                    requests_per_second: 1.0,
                    p50_ms: 1.0,
                    p99_ms: 2.0,
                    errors: if index == 1 { errors } else { 0 },
                };
                report.add(&WORKLOADS[0], index, Round::new(*cost, 1024, seen));
            }
        }
        report
    }

    #[test]
    fn the_ratio_is_of_medians_and_to_the_best_valid_peer() {
        let costs: [(&str, &[f64]); 3] =
            [("cortex", &[1.0, 9.0, 1.2]), ("nginx", &[1.0, 1.0, 1.0]), ("haproxy", &[2.4])];
        let (times, peer) = report(&costs, 0).rows[0].times(Kind::Cortex).unwrap();
        assert_eq!((peer, (times * 100.0).round()), ("nginx", 83.0));
        let failed = report(&costs, 1);
        let (times, peer) = failed.rows[0].times(Kind::Cortex).unwrap();
        assert_eq!((peer, (times * 100.0).round()), ("haproxy", 200.0));
        assert_eq!(failed.rows[0].times_nginx(), None);
        assert!(report(&costs, 0).table().contains("BELOW THE FLOOR"));
        assert!(failed.table().contains("aim reached"));
        assert!(failed.table().contains("INVALID"));
        assert_eq!(failed.rows[1].times(Kind::Cortex), None);
    }

    #[test]
    fn the_least_possible_cost_counts_as_no_peer() {
        let costs: [(&str, &[f64]); 3] =
            [("cortex", &[1.25]), ("nginx", &[1.5]), ("least", &[1.0])];
        let report = report(&costs, 0);
        assert_eq!(report.rows[0].times(Kind::Cortex), Some((1.2, "nginx")));
        let text = report.table();
        assert!(text.contains("least / best peer (nginx), req/CPU-s: 1.50: "), "{text}");
        assert!(text.contains("the better peer's (nginx) 2.00"), "{text}");
    }

    #[test]
    fn a_row_names_its_other_conditions() {
        let costs: [(&str, &[f64]); 3] =
            [("cortex", &[1.0]), ("nginx", &[1.0]), ("haproxy", &[1.0])];
        let mut report = report(&costs, 0);
        let text = report.table();
        let own =
            "p99 ms, each asked as fast as it answers: 2.00, the better peer's (nginx) 2.00: no";
        assert!(text.contains(own), "{text}");
        assert!(!text.contains("memory MB") && !text.contains("alone"), "{text}");
        assert!(!text.contains("cortex / nginx"), "{text}");
        report.rows[0].idle = 1_000;
        report.rows[0].nginx_floor = Some(2.0);
        let text = report.table();
        assert!(text.contains("nginx, req/CPU-s: 1.00 (floor 2): BELOW THE FLOOR"), "{text}");
        report.rows[0].nginx_floor = Some(1.0);
        let text = report.table();
        assert!(text.contains("nginx, req/CPU-s: 1.00 (floor 1): floor reached"), "{text}");
        report.add_alone(&WORKLOADS[0], 1, vec![9.0, 1.05, 0.1]);
        report.add_alone(&WORKLOADS[0], 2, vec![1.2]);
        let text = report.table();
        assert!(text.contains("nginx's 1.0: no higher"), "{text}");
        assert!(text.contains("nginx alone: 1 req/s, in the rounds 0.95 of it: within"), "{text}");
        assert!(text.contains("haproxy alone: 1 req/s, in the rounds 0.83 of it: NOT"), "{text}");
        let own = report.rows[0].cells[0].median.as_mut().unwrap();
        own.resident_kb = 2048;
        report.rows[0].cells[0].rounds[0].p99_ms = 2.1;
        let text = report.table();
        assert!(text.contains("(nginx) 2.00: WORSE") && text.contains(": HIGHER"), "{text}");
    }

    #[test]
    fn all_are_asked_as_often_as_the_slowest_can_answer() {
        let costs: [(&str, &[f64]); 3] =
            [("cortex", &[1.0]), ("nginx", &[1.0]), ("haproxy", &[1.0])];
        let mut report = report(&costs, 0);
        let row = &mut report.rows[0];
        for (cell, rate) in row.cells.iter_mut().zip([300.0, 200.0, 100.0]) {
            cell.median.as_mut().unwrap().requests_per_second = rate;
        }
        row.cells[2].valid = false;
        report.choose_rates();
        assert_eq!(report.rate(&WORKLOADS[0]), Some(50.0));
        assert_eq!(report.rate(&WORKLOADS[1]), None);
        let seen = |p99_ms, errors| Seen {
            requests: 100,
            requests_per_second: 50.0,
            p50_ms: 0.1,
            p99_ms,
            errors,
        };
        for p99_ms in [0.3, 9.0, 0.2] {
            report.add_paced(&WORKLOADS[0], 0, seen(p99_ms, 0));
        }
        report.add_paced(&WORKLOADS[0], 1, seen(0.4, 0));
        let line = "all asked 50 times a second: 0.30, the better peer's (nginx) 0.40: no worse";
        assert!(report.table().contains(line), "{}", report.table());
        for p99_ms in [0.5, 0.2, 0.1] {
            report.add_paced(&WORKLOADS[0], 1, seen(p99_ms, 0));
        }
        let line = "0.30, the better peer's (nginx) 0.30: no worse";
        assert!(report.table().contains(line), "{}", report.table());
        report.add_paced(&WORKLOADS[0], 1, seen(0.15, 0));
        let line = "0.30, the better peer's (nginx) 0.20: no worse than in its worst round";
        assert!(report.table().contains(line), "{}", report.table());
        report.add_paced(&WORKLOADS[0], 1, seen(0.4, 1));
        assert!(report.table().contains("INVALID"), "{}", report.table());
    }
}
