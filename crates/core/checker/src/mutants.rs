//! Deliberate mistakes of this crate that the simulator must notice.

model::mutants! {
    /// A node that cannot be asked counts as one whose instances are gone.
    SILENCE_IS_GONE = 1,
    /// One witness is believed although there are others.
    ONE_SUFFICES = 2,
    /// Witnesses are heard that cannot have looked lately.
    THE_DEAD_SPEAK = 3,
}
