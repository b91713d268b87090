//! How far the lines of a log have come to somebody who follows them, so that after a cut
//! connection none is missing and none comes twice.

/// The newest time of the lines of one node, and how many lines had it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    time: Option<String>,
    count: usize,
}

impl LogPosition {
    pub fn note(&mut self, time: &Option<String>) {
        if *time == self.time {
            self.count += 1;
        } else if *time > self.time {
            (self.time, self.count) = (time.clone(), 1);
        }
    }

    /// Returns the time from which to ask for lines again; `None` if there were none.
    pub fn time(&self) -> Option<&String> {
        self.time.as_ref()
    }

    /// Returns what tells lines that were there before from new ones, when they come again.
    pub fn resume(&self) -> LogResume {
        LogResume { position: self.clone() }
    }
}

#[derive(Clone, Debug, Default)]
pub struct LogResume {
    position: LogPosition,
}

impl LogResume {
    /// Returns whether the next line of that time was there before.
    pub fn was_there(&mut self, time: &Option<String>) -> bool {
        let LogPosition { time: newest, count } = &mut self.position;
        if newest.is_none() || *time > *newest {
            return false;
        }
        if *time < *newest {
            return true;
        }
        let again = *count > 0;
        *count = count.saturating_sub(1);
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_come_again_are_known() {
        let at = |second: u32| Some(format!("2026-08-01T12:00:{second:02}.000Z"));
        let mut position = LogPosition::default();
        assert!(!position.resume().was_there(&at(1)), "there was nothing");
        [1, 2, 2].iter().for_each(|second| position.note(&at(*second)));
        assert_eq!(position.time(), at(2).as_ref());
        let mut again = position.resume();
        let were: Vec<bool> = [1, 2, 2, 2, 3].iter().map(|s| again.was_there(&at(*s))).collect();
        assert_eq!(were, [true, true, true, false, false]);
    }
}
