//! Commits: no bytes panic, and what is read is written again as it was, as its id rests on that.

use store_core::Commit;

pub fn check(bytes: &[u8]) {
    let Ok((commit, rest)) = Commit::decode(bytes) else { return };
    let mut again = Vec::new();
    commit.encode(&mut again);
    assert_eq!(again.len(), commit.encoded_length());
    assert_eq!(again, bytes[..bytes.len() - rest.len()], "one commit has one encoding");
    assert_eq!(Commit::decode(&again), Ok((commit, &[][..])));
}
