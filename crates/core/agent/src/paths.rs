//! Arithmetic with paths of trees that may not be there: nothing is looked at on a disk.

use std::path::{Component, Path};

/// Returns whether a link at `path` leads to a place in the same tree.
pub fn stays_inside(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_inside_as_long_as_it_climbs_no_higher_than_it_lies() {
        let stays = |path: &str, target: &str| stays_inside(Path::new(path), Path::new(target));
        assert!(stays("a/b", "../c") && stays("a/b", "./c/../../d") && stays("a", "b"));
        assert!(!stays("a", "../b") && !stays("a/b", "../../c") && !stays("a", "/etc/passwd"));
    }
}
