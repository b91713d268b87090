//! The order in which back ends of different weight are looked at: each as often as its weight
//! says, and spread out, so that a heavy one does not get its share in one burst. Driven by `cortex
//! proxy` whenever a back end comes, goes or changes.

/// The largest weight: a hundred times as much as another is as good as all.
pub const WEIGHT_MAX: u32 = 100;

/// Returns indices of `weights`, each as often as its share in lowest terms. A weight of 0 is left
/// out.
pub fn order(weights: &[u32]) -> Vec<usize> {
    let weights: Vec<i64> = weights.iter().map(|one| i64::from((*one).min(WEIGHT_MAX))).collect();
    let divisor = weights.iter().fold(0, |sum, one| gcd(sum, *one)).max(1);
    let weights: Vec<i64> = weights.iter().map(|one| one / divisor).collect();
    let total: i64 = weights.iter().sum();
    // Each saves up its weight; the one that has most is next and pays for all.
    let mut saved = vec![0; weights.len()];
    (0..total)
        .filter_map(|_| {
            saved.iter_mut().zip(&weights).for_each(|(saved, weight)| *saved += weight);
            let richest = saved
                .iter()
                .enumerate()
                .max_by_key(|(index, saved)| (**saved, std::cmp::Reverse(*index)));
            let (next, _) = richest?;
            saved[next] -= total;
            Some(next)
        })
        .collect()
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_are_in_lowest_terms_and_spread() {
        assert_eq!(order(&[1, 1, 1]), [0, 1, 2]);
        assert_eq!(order(&[100, 100]), [0, 1]);
        assert_eq!(order(&[5, 1, 1]), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(order(&[0, 4, 2]), [1, 2, 1]);
        assert_eq!(order(&[0, 0]), [0usize; 0]);
        assert_eq!(order(&[]), [0usize; 0]);
    }

    proptest! {
        #[test]
        fn each_has_its_share(weights in proptest::collection::vec(0u32..=WEIGHT_MAX, 0..8)) {
            let order = order(&weights);
            let of = |index| order.iter().filter(|at| **at == index).count();
            let counts: Vec<usize> = (0..weights.len()).map(of).collect();
            let total: u32 = weights.iter().sum();
            for (count, weight) in counts.iter().zip(&weights) {
                // Cross products: the same share of both sums.
                prop_assert_eq!(count * total as usize, *weight as usize * order.len());
            }
        }
    }
}
