//! Runs of scripts: random bytes, and those that once showed a mistake.

use proptest::prelude::*;

use crate::script;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_order_of_anything_upsets_a_node(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        script::run(&bytes);
    }
}

/// A peer let a horizon rise that nobody could have let rise, and then told of a delete that all
/// should have known: a watcher of the value was not told of its end.
#[test]
fn watchers_hear_of_a_delete_below_the_garbage_horizon() {
    script::run(include_bytes!("../../../../../fuzz/seeds/machine/ended-by-what-all-know"));
}

/// What was collected in one cluster is no loss in another, whose horizons are lower.
#[test]
fn a_delete_collected_before_a_join_is_no_loss_in_the_new_cluster() {
    script::run(include_bytes!("../../../../../fuzz/seeds/machine/collected-in-another-cluster"));
}

/// The same case, where both are in one batch of the log.
#[test]
fn a_delete_collected_during_a_join_is_no_loss_in_the_new_cluster() {
    script::run(include_bytes!("../../../../../fuzz/seeds/machine/collected-while-joining"));
}
