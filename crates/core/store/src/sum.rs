//! Sums of commit ids modulo 2^256: the part of a fingerprint that can be kept up to date by
//! addition and subtraction.

use std::fmt;

/// A set of commits, as a sum of their ids and their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitSum {
    limbs: [u64; 4],
    pub count: u64,
}

/// F of a range: what two nodes compare.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 16]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl CommitSum {
    pub fn of(cid: &[u8; 32]) -> CommitSum {
        let mut limbs = [0; 4];
        for (limb, bytes) in limbs.iter_mut().zip(cid.chunks_exact(8)) {
            *limb = u64::from_le_bytes(bytes.try_into().expect("chunks have 8 bytes"));
        }
        CommitSum { limbs, count: 1 }
    }

    pub fn plus(self, other: CommitSum) -> CommitSum {
        let mut limbs = [0; 4];
        let mut carry = false;
        for (i, limb) in limbs.iter_mut().enumerate() {
            let (sum, over) = self.limbs[i].overflowing_add(other.limbs[i]);
            let (sum, over_carry) = sum.overflowing_add(carry.into());
            *limb = sum;
            carry = over || over_carry;
        }
        CommitSum { limbs, count: self.count.wrapping_add(other.count) }
    }

    /// Subtracts `other`, which must be part of `self`.
    pub fn minus(self, other: CommitSum) -> CommitSum {
        let mut limbs = [0; 4];
        let mut borrow = false;
        for (i, limb) in limbs.iter_mut().enumerate() {
            let (rest, under) = self.limbs[i].overflowing_sub(other.limbs[i]);
            let (rest, under_borrow) = rest.overflowing_sub(borrow.into());
            *limb = rest;
            borrow = under || under_borrow;
        }
        CommitSum { limbs, count: self.count.wrapping_sub(other.count) }
    }

    pub fn fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new();
        for limb in self.limbs {
            hasher.update(&limb.to_le_bytes());
        }
        hasher.update(&self.count.to_le_bytes());
        let mut short = [0; 16];
        short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Fingerprint(short)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sums_add_in_any_order_and_subtract(a: [u8; 32], b: [u8; 32], c: [u8; 32]) {
            let [a, b, c] = [a, b, c].map(|cid| CommitSum::of(&cid));
            prop_assert_eq!(a.plus(b).plus(c), c.plus(a).plus(b));
            prop_assert_eq!(a.plus(b).minus(b), a);
            prop_assert_eq!(a.plus(b).minus(a).minus(b), CommitSum::default());
        }
    }

    #[test]
    fn carries_run_through_all_limbs() {
        let mut one = [0; 32];
        one[0] = 1;
        let sum = CommitSum::of(&[0xff; 32]).plus(CommitSum::of(&one));
        assert_eq!(sum, CommitSum { limbs: [0; 4], count: 2 });
        assert_ne!(sum.fingerprint(), CommitSum::default().fingerprint());
    }
}
