//! Deliberate mistakes of this crate that the simulator must notice.

model::mutants! {
    NO_BACKOFF = 1,
    DRAIN_BEFORE_READY = 2,
    SWITCH_BEFORE_ALL_HEALTHY = 3,
    START_BEFORE_CLAIM = 4,
    FORGET_STRAYS = 5,
    REUSE_GENERATIONS = 6,
    KEEP_DUPLICATES = 7,
    GIVE_WAY_BEFORE_READY = 8,
    IGNORE_DEATHS = 9,
    NO_HYSTERESIS = 10,
    DRAINED_TAKES = 11,
    DATA_STAYS_BEHIND = 12,
    NO_LEASE = 13,
    UNFENCED_RELEASES = 14,
    FIRST_STARTS_AT_ONCE = 15,
    NEVER_TAKE_BACK = 16,
    TAKE_BACK_AGAIN = 17,
}
