//! One hash for all that must come out alike on every node and after every restart. Nobody gains by
//! finding two names with the same one: keys that collide share an endpoint or a turn.

/// FNV-1a, and the finalizer of SplitMix64, since FNV's upper bits are weak for short names.
pub fn bytes(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold))
}

/// Neighbours come out far apart.
pub fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

pub fn pair(one: u64, other: u64) -> u64 {
    mix(one ^ mix(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_differ_in_about_half_of_their_bits() {
        let different: u32 = (0..1000_u64).map(|n| (mix(n) ^ mix(n + 1)).count_ones()).sum();
        assert!((28_000..36_000).contains(&different), "{different}");
        assert_ne!(bytes(b"a"), bytes(b"b"));
        assert_ne!(pair(1, 2), pair(2, 1));
    }
}
