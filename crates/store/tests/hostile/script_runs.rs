//! Scripts of random bytes, and those that once showed a mistake.

use proptest::prelude::*;

use crate::script;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_order_of_anything_upsets_a_node(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        script::run(&bytes);
    }
}
