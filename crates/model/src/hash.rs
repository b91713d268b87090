//! Hashes of what must come out alike on every node and after every restart, and chance from a
//! seed. Nobody gains by finding two names with the same one. FNV-1a, and SplitMix64: Steele, Lea
//! and Flood, "Fast splittable pseudorandom number generators" (2014).

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the FNV-1a hash. Its upper bits are weak for short names: where they count, see `bytes`
/// and `spread`.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

pub fn bytes(bytes: &[u8]) -> u64 {
    mix(fnv1a(bytes))
}

/// Applies the last step of SplitMix64: near inputs come far apart, and zero stays zero.
pub fn spread(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Mixes a word, so that near inputs come far apart.
pub fn mix(word: u64) -> u64 {
    spread(word.wrapping_add(STEP))
}

pub fn pair(one: u64, other: u64) -> u64 {
    mix(one ^ mix(other))
}

/// Returns the next number by chance; the state begins as a seed.
pub fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    spread(*state)
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

    #[test]
    fn the_generator_draws_the_published_numbers() {
        let mut state = 1_234_567;
        let drawn = [(); 3].map(|()| draw(&mut state));
        assert_eq!(
            drawn,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
