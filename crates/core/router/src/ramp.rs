//! The ramp of an endpoint that is new, or back after failures: how much of its part it takes, a
//! share that grows to the whole, as Envoy's slow start has it. Caches fill and code is compiled
//! meanwhile. Driven by the router's threads.

use model::hash;

/// The share that is all of what falls to an endpoint.
pub const WHOLE: u32 = 256;
/// The least share, a tenth as in Envoy: with less, a rarely used endpoint would never warm up.
const SHARE_MIN: u32 = WHOLE / 10;

/// Returns the share this long after it began.
pub fn share(elapsed_ms: u64, window_ms: u64) -> u32 {
    if elapsed_ms >= window_ms {
        return WHOLE;
    }
    let grown = u64::from(WHOLE).saturating_mul(elapsed_ms) / window_ms;
    u32::try_from(grown).unwrap_or(WHOLE).clamp(SHARE_MIN, WHOLE)
}

/// Returns whether the endpoint with this share may be chosen. `luck` is the request's turn, or its
/// key: then a key that once went there goes on to do so as the share grows.
pub fn takes_part(share: u32, luck: u64, identity: u64) -> bool {
    share >= WHOLE || hash::pair(luck, identity) % u64::from(WHOLE) < u64::from(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_share_grows_from_a_tenth_to_the_whole() {
        assert_eq!(share(0, 0), WHOLE);
        assert_eq!(share(0, 1000), SHARE_MIN);
        assert_eq!(share(500, 1000), WHOLE / 2);
        assert_eq!(share(1000, 1000), WHOLE);
        let taken = (0..10_000).filter(|turn| takes_part(WHOLE / 4, *turn, 7)).count();
        assert!((2_300..2_700).contains(&taken), "{taken}");
    }

    proptest! {
        #[test]
        fn an_endpoint_that_took_part_takes_no_less_later(
            luck in any::<u64>(), identity in any::<u64>(), window in 1u64..100_000,
            at in 0u64..100_000, later in 0u64..100_000,
        ) {
            let (before, after) = (share(at, window), share(at + later, window));
            prop_assert!(SHARE_MIN <= before && before <= after && after <= WHOLE);
            if takes_part(before, luck, identity) {
                prop_assert!(takes_part(after, luck, identity));
            }
        }
    }
}
