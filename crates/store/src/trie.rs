//! The newest commit of every key, in a trie of tokens. Knows where a winner stands in the
//! history, not what it holds.

use std::collections::BTreeMap;

use model::Prefix;
use model::key::SEPARATOR;

use crate::clock::Stamp;
use crate::commit::Position;

/// No commit has stamp 0; as an `Option` every branch would be 8 bytes larger.
const NONE: Position = Position::start_of(Stamp(0));

#[derive(Clone, Debug)]
struct Branch {
    winner: Position,
    #[allow(clippy::box_collection, reason = "most branches are leaves: 8 bytes instead of 24")]
    children: Option<Box<BTreeMap<Box<str>, Branch>>>,
}

impl Default for Branch {
    fn default() -> Branch {
        Branch { winner: NONE, children: None }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Trie {
    root: Branch,
    len: usize,
}

impl Trie {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, key: &str) -> Option<Position> {
        self.root.descend(key.split(SEPARATOR))?.winner()
    }

    /// Returns the winner before.
    pub fn set(&mut self, key: &str, winner: Position) -> Option<Position> {
        let mut branch = &mut self.root;
        for token in key.split(SEPARATOR) {
            let children = branch.children.get_or_insert_default();
            if !children.contains_key(token) {
                children.insert(token.into(), Branch::default());
            }
            branch = children.get_mut(token).expect("just looked for or inserted");
        }
        let before = branch.winner();
        branch.winner = winner;
        self.len += usize::from(before.is_none());
        before
    }

    /// Also drops the branches that lead nowhere any more.
    pub fn remove(&mut self, key: &str) -> Option<Position> {
        let removed = self.root.remove(&mut key.split(SEPARATOR));
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// The winners at and below a prefix, token by token in order.
    pub fn visit(&self, prefix: &Prefix, visit: &mut dyn FnMut(Position)) {
        if let Some(branch) = self.root.descend(prefix.tokens()) {
            branch.visit(visit);
        }
    }
}

impl Branch {
    fn winner(&self) -> Option<Position> {
        (self.winner != NONE).then_some(self.winner)
    }

    fn take(&mut self) -> Option<Position> {
        let winner = self.winner();
        self.winner = NONE;
        winner
    }

    fn descend<'a>(&self, mut tokens: impl Iterator<Item = &'a str>) -> Option<&Branch> {
        tokens.try_fold(self, |branch, token| branch.children.as_ref()?.get(token))
    }

    /// A key has at most 1 KiB, so the recursion ends after some 340 tokens.
    fn remove<'a>(&mut self, tokens: &mut impl Iterator<Item = &'a str>) -> Option<Position> {
        let Some(token) = tokens.next() else { return self.take() };
        let children = self.children.as_mut()?;
        let child = children.get_mut(token)?;
        let removed = child.remove(tokens);
        if child.winner == NONE && child.children.is_none() {
            children.remove(token);
            if children.is_empty() {
                self.children = None;
            }
        }
        removed
    }

    fn visit(&self, visit: &mut dyn FnMut(Position)) {
        if let Some(winner) = self.winner() {
            visit(winner);
        }
        for child in self.children.iter().flat_map(|children| children.values()) {
            child.visit(visit);
        }
    }
}
