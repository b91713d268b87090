//! Deliberate mistakes of this crate that the simulator must notice.

model::mutants! {
    G_IGNORES_DEAD = 1,
    G_BY_TIMEOUT = 2,
    HORIZONS_NOT_EXCHANGED = 3,
    V_BEFORE_DURABLE = 4,
    NO_SKEW_CHECK = 5,
    NO_RULE_B = 6,
    PROMISE_AFTER_RESTART = 7,
    EVICTION_UNSETTLED = 8,
    V_BEFORE_KEPT = 9,
    JOIN_UNLISTED = 10,
}
