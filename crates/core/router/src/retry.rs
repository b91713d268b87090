//! Retries: what may be tried again elsewhere, and how often. Driven by the router's threads.

/// Times that one request is sent again after it may have been seen.
pub const RETRIES_MAX: u32 = 5;
/// Tenths of retries that are saved up while all is well; each request adds a tenth of one, so that
/// in a disaster retries add a tenth to the load and not a multiple.
pub const BUDGET_TENTHS_MAX: u32 = 1_000;
const TENTHS_PER_RETRY: u32 = 10;

/// The progress of an attempt when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptProgress {
    /// No connection was made: the instance cannot have seen anything.
    NotConnected,
    /// The request was sent, wholly or in part, and no byte of an answer has come.
    NoAnswer { body_consumed: bool },
    /// An answer has begun.
    Answering,
}

/// Returns whether doing it once or several times has the same effect (RFC 9110, section 9.2.2).
pub fn is_idempotent(method: &[u8]) -> bool {
    matches!(method, b"GET" | b"HEAD" | b"PUT" | b"DELETE" | b"OPTIONS" | b"TRACE")
}

pub fn may_retry(progress: AttemptProgress, idempotent: bool, retries: u32) -> bool {
    match progress {
        // The request goes back to the queue, which has a time limit, and the endpoint is left
        // alone.
        AttemptProgress::NotConnected => true,
        AttemptProgress::NoAnswer { body_consumed } => {
            idempotent && !body_consumed && retries < RETRIES_MAX
        }
        AttemptProgress::Answering => false,
    }
}

/// The budget of one thread.
#[derive(Debug)]
pub struct Budget {
    tenths: u32,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { tenths: BUDGET_TENTHS_MAX }
    }
}

impl Budget {
    pub fn deposit(&mut self) {
        self.tenths = (self.tenths + 1).min(BUDGET_TENTHS_MAX);
    }

    pub fn withdraw(&mut self) -> bool {
        let enough = self.tenths >= TENTHS_PER_RETRY;
        if enough {
            self.tenths -= TENTHS_PER_RETRY;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_safe_is_repeated() {
        let sent = AttemptProgress::NoAnswer { body_consumed: false };
        assert!(may_retry(AttemptProgress::NotConnected, false, 0));
        assert!(may_retry(sent, is_idempotent(b"GET"), 0));
        assert!(!may_retry(sent, is_idempotent(b"POST"), 0));
        assert!(!may_retry(AttemptProgress::NoAnswer { body_consumed: true }, true, 0));
        assert!(!may_retry(AttemptProgress::Answering, true, 0));
        assert!(!may_retry(sent, true, RETRIES_MAX));
    }

    #[test]
    fn the_budget_runs_out_and_refills() {
        let mut budget = Budget::default();
        let granted = (0..1000).filter(|_| budget.withdraw()).count();
        assert_eq!(granted, 100);
        (0..10).for_each(|_| budget.deposit());
        assert!(budget.withdraw());
        assert!(!budget.withdraw());
    }
}
