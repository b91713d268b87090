//! The places of the headings of phases between the lines of steps. Lines come from a log and
//! phases from the store, so that either is seen first: times tell which phase printed a line.
//! Pure.

use logs::is_in_steps;
use model::{RolloutPhase, Timestamp};

#[derive(Debug, Default)]
pub struct Headings {
    shown: Option<RolloutPhase>,
    /// The phase whose heading is next, and the time from which lines are its own.
    next: Option<(RolloutPhase, Timestamp)>,
}

impl Headings {
    /// Notes the phase that the rollout is in since that time.
    pub fn turn_to(&mut self, phase: RolloutPhase, since: Timestamp) {
        let since = match phase {
            _ if self.shown == Some(phase) => return,
            RolloutPhase::Building if !self.has_begun() => Timestamp(0),
            phase if is_in_steps(phase) => since,
            // Nothing that comes after the steps prints into their log.
            _ => Timestamp(u64::MAX),
        };
        self.next = Some((phase, since));
    }

    /// Returns whether steps may have printed something.
    pub fn has_begun(&self) -> bool {
        !matches!(self.shown, None | Some(RolloutPhase::Requested))
    }

    /// Returns the heading above a line that was printed at that time, if one is due.
    pub fn above_line(&mut self, printed: Option<Timestamp>) -> Option<RolloutPhase> {
        let (_, since) = self.next?;
        if printed.is_some_and(|at| at >= since) || since == Timestamp(0) {
            return self.below_lines();
        }
        // It was built before anybody looked.
        let unseen = !self.has_begun();
        unseen.then(|| *self.shown.insert(RolloutPhase::Building))
    }

    /// Returns the heading below the lines that there are, if one is due.
    pub fn below_lines(&mut self) -> Option<RolloutPhase> {
        let (phase, _) = self.next.take()?;
        Some(*self.shown.insert(phase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(turns: &[(RolloutPhase, u64, &[u64])]) -> Vec<String> {
        let (mut headings, mut shown) = (Headings::default(), Vec::new());
        let word = |phase: RolloutPhase| format!("{phase:?}");
        for (phase, since, lines) in turns {
            headings.turn_to(*phase, Timestamp(*since));
            for at in *lines {
                shown.extend(headings.above_line(Some(Timestamp(*at))).map(word));
                shown.push(at.to_string());
            }
            shown.extend(headings.below_lines().map(word));
        }
        shown
    }

    #[test]
    fn each_line_stands_below_the_heading_of_its_phase() {
        use RolloutPhase::{Building, Done, Releasing, Requested, Starting};
        let usual =
            [(Requested, 1, &[][..]), (Building, 2, &[2, 3]), (Building, 2, &[4]), (Done, 9, &[])];
        assert_eq!(placed(&usual), ["Requested", "Building", "2", "3", "4", "Done"]);
        // The last line of the build and the first one of the release are read together.
        let both = [(Building, 2, &[3][..]), (Releasing, 5, &[4, 5, 6]), (Starting, 7, &[7])];
        assert_eq!(placed(&both), ["Building", "3", "4", "Releasing", "5", "6", "7", "Starting"]);
        let late = [(Releasing, 5, &[3, 4, 5][..])];
        assert_eq!(placed(&late), ["Building", "3", "4", "Releasing", "5"]);
        let over = [(Done, 5, &[3, 4][..])];
        assert_eq!(placed(&over), ["Building", "3", "4", "Done"]);
        assert_eq!(placed(&[(Done, 5, &[])]), ["Done"]);
    }
}
