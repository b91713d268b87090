//! Every input that is kept in `fuzz/seeds` is read by its target as it is, then with what damage
//! does to it: bits that flip, bytes that are lost, repeated or come from another input.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fuzz_targets::TARGETS;
use model::hash;

/// The number of damaged inputs that are made of each kept one. libFuzzer makes more and better
/// ones; these are to find what a change breaks at once.
const DAMAGED: u64 = 120;
/// The number of damages done to one input, at the most.
const DAMAGES_MAX: u64 = 4;

/// Chance that is the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        hash::draw(&mut self.0)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn inputs_of(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let files = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).expect("an input"))).collect()
}

fn damage(input: &mut Vec<u8>, others: &[(PathBuf, Vec<u8>)], random: &mut Random) {
    let at = random.below(input.len());
    match random.below(6) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = random.next() as u8,
        2 => input.truncate(at),
        3 => {
            let end = at + random.below(input.len() - at);
            let part = input[at..end].to_vec();
            input.splice(at..at, part);
        }
        4 => {
            let end = at + random.below(input.len() - at);
            input.drain(at..end);
        }
        _ => {
            let other = &others[random.below(others.len())].1;
            let from = random.below(other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
}

fn check(target: fn(&[u8]), input: &[u8], of: &Path) {
    let checked = catch_unwind(AssertUnwindSafe(|| target(input)));
    if checked.is_err() {
        panic!("made of {}: {}", of.display(), input.escape_ascii());
    }
}

#[test]
fn inputs_that_were_kept_and_their_kin_break_no_promise() {
    for (name, target) in TARGETS {
        let inputs = inputs_of(name);
        assert!(!inputs.is_empty(), "{name} has no inputs");
        for (number, (path, input)) in inputs.iter().enumerate() {
            check(*target, input, path);
            let mut random = Random(number as u64);
            for _ in 0..DAMAGED {
                let mut damaged = input.clone();
                for _ in 0..=random.below(DAMAGES_MAX as usize) {
                    damage(&mut damaged, &inputs, &mut random);
                }
                check(*target, &damaged, path);
            }
        }
    }
}
