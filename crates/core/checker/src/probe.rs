//! One instance under probe: what is asked, what was answered, and what follows from it.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Generation;
use model::probe::HealthState;

/// Probes in a row that find nothing before an instance is gone: refused once may be an overflowing
/// backlog; refused twice, a moment apart, is a listener gone.
pub const GONE_AFTER: u32 = 2;
/// Probes in a row that go wrong before an instance is failing: a slow answer or two are no reason
/// to call it unhealthy.
pub const FAILING_AFTER: u32 = 3;
/// The time until a doubtful instance is probed again.
pub const RECHECK: Duration = Duration::from_millis(100);

/// What is probed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub generation: Generation,
    pub method: Method,
    /// The time between two probes of an instance that is well.
    pub interval: Duration,
    /// The time for one probe.
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    /// A connection to the port on loopback.
    Tcp { port: u16 },
    /// A GET of `path`; 200 to 399 is well.
    Http { port: u16, path: String, host: String, headers: BTreeMap<String, String> },
    /// The existence of the process, as there is no port.
    Process { pid: u32, start_ticks: u64 },
}

/// What one probe saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    Well,
    /// Nothing is there: connection refused, no such process.
    Absent {
        detail: String,
    },
    /// Something is there that does not do as it should: a status, a time-out.
    Unwell {
        detail: String,
    },
    /// Its node could not be asked. That says nothing of the instance, so what was said of it
    /// before is taken back.
    Unreached,
}

/// The counts of bad probes in a row, which decide; a single good probe clears both.
#[derive(Clone, Debug, Default)]
pub struct BadProbes {
    absent: u32,
    unwell: u32,
}

impl BadProbes {
    /// Counts an outcome and returns the verdict that it leads to; `None` while it is still in
    /// doubt.
    pub fn count(&mut self, outcome: &ProbeOutcome) -> Option<HealthState> {
        match outcome {
            ProbeOutcome::Well => {
                *self = BadProbes::default();
                Some(HealthState::Healthy)
            }
            // Only a deliberate mistake counts it, see `Checker`.
            ProbeOutcome::Absent { .. } | ProbeOutcome::Unreached => {
                self.absent = self.absent.saturating_add(1);
                (self.absent >= GONE_AFTER).then_some(HealthState::Gone)
            }
            ProbeOutcome::Unwell { .. } => {
                self.absent = 0;
                self.unwell = self.unwell.saturating_add(1);
                (self.unwell >= FAILING_AFTER).then_some(HealthState::Failing)
            }
        }
    }

    pub fn in_doubt(&self) -> bool {
        (1..GONE_AFTER).contains(&self.absent) || (1..FAILING_AFTER).contains(&self.unwell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(outcomes: &str, expected: Option<HealthState>) {
        let mut tally = BadProbes::default();
        let mut last = None;
        for outcome in outcomes.chars() {
            last = tally.count(&match outcome {
                'w' => ProbeOutcome::Well,
                'a' => ProbeOutcome::Absent { detail: String::new() },
                _ => ProbeOutcome::Unwell { detail: String::new() },
            });
        }
        assert_eq!(last, expected, "{outcomes}");
    }

    #[test]
    fn verdicts_need_several_probes_in_a_row() {
        check("w", Some(HealthState::Healthy));
        check("a", None);
        check("aa", Some(HealthState::Gone));
        check("awa", None);
        check("uu", None);
        check("uuu", Some(HealthState::Failing));
        check("uuua", None);
        check("uuuw", Some(HealthState::Healthy));
        check("aua", None);
    }
}
