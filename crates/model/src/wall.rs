//! The walls around applications: what is asked for, which kinds there are, and which ones a node
//! can build.

use serde::{Deserialize, Serialize};

use crate::record::Unknown;
use crate::time::Timestamp;

/// What keeps an application from the rest of its machine, from the least to the most.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Nothing but what keeps the users of the machine apart: it runs as the node's user.
    #[default]
    None,
    /// Landlock and the filter of calls alone, for machines that let ordinary users make no
    /// namespaces.
    Landlock,
    /// A wall: its own files and the system are all it sees, its own processes all it reaches.
    Standard,
    /// The same with a network of its own, for what is not trusted.
    Full,
}

impl Isolation {
    pub const ALL: [Isolation; 4] =
        [Isolation::None, Isolation::Landlock, Isolation::Standard, Isolation::Full];

    pub fn is_none(&self) -> bool {
        *self == Isolation::None
    }

    pub fn word(self) -> &'static str {
        match self {
            Isolation::None => "none",
            Isolation::Landlock => "landlock",
            Isolation::Standard => "standard",
            Isolation::Full => "full",
        }
    }
}

/// The places that an application with a network of its own may connect to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Egress {
    #[default]
    None,
    /// All of the internet, and nothing of the machine's own networks.
    All,
}

impl Egress {
    pub fn word(self) -> &'static str {
        match self {
            Egress::None => "none",
            Egress::All => "all",
        }
    }

    pub fn is_none(&self) -> bool {
        *self == Egress::None
    }
}

/// The kinds of walls that there are to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wall {
    Landlock,
    Standard,
    Full,
    /// `Full` with the internet.
    FullEgress,
}

impl Wall {
    pub const ALL: [Wall; 4] = [Wall::Landlock, Wall::Standard, Wall::Full, Wall::FullEgress];

    /// Returns the wall that is asked for; `None` if none is.
    pub fn of(isolation: Isolation, egress: Egress) -> Option<Wall> {
        match (isolation, egress) {
            (Isolation::None, _) => None,
            (Isolation::Landlock, _) => Some(Wall::Landlock),
            (Isolation::Standard, _) => Some(Wall::Standard),
            (Isolation::Full, Egress::None) => Some(Wall::Full),
            (Isolation::Full, Egress::All) => Some(Wall::FullEgress),
        }
    }

    /// Returns the word for it in the record of a node.
    pub fn word(self) -> &'static str {
        match self {
            Wall::Landlock => "landlock",
            Wall::Standard => "standard",
            Wall::Full => "full",
            Wall::FullEgress => "full-egress",
        }
    }
}

/// A set of walls: those that a node can build, or those that are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walls(u8);

impl Walls {
    pub const ALL: Walls = Walls(0b1111);

    /// Returns the walls of a node's record. Words of later builds mean nothing here.
    pub fn of_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Walls {
        let known = |word| Wall::ALL.into_iter().find(|wall| wall.word() == word);
        words.into_iter().filter_map(known).collect()
    }

    /// Returns whether all of the others are among them.
    pub fn contain(self, others: Walls) -> bool {
        others.0 & !self.0 == 0
    }

    pub fn insert(&mut self, wall: Wall) {
        self.0 |= 1 << wall as u8;
    }

    pub fn words(self) -> Vec<String> {
        let own = Wall::ALL.into_iter().filter(|wall| self.contain([*wall].into_iter().collect()));
        own.map(|wall| wall.word().to_owned()).collect()
    }
}

impl FromIterator<Wall> for Walls {
    fn from_iter<I: IntoIterator<Item = Wall>>(walls: I) -> Walls {
        let mut all = Walls::default();
        walls.into_iter().for_each(|wall| all.insert(wall));
        all
    }
}

/// `cluster::isolation`: what applications get that say nothing of their isolation, as an owner
/// decided; without it, it follows from who the people of the platform are. Written by a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IsolationDefault {
    pub v: u32,
    pub isolation: Isolation,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What is asked of the wall around an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedIsolation {
    #[serde(default)]
    pub isolation: Isolation,
    /// What counts where its network is its own.
    #[serde(default)]
    pub egress: Egress,
}

impl AskedIsolation {
    /// Returns the places that it would connect to: all where it has the machine's network.
    fn reaches(self) -> Egress {
        if self.isolation == Isolation::Full { self.egress } else { Egress::All }
    }
}

/// The mark of an owner of the platform on an application that they do not trust. What is pushed
/// to it may ask for more of a wall, and never gets less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IsolationMark {
    #[serde(flatten)]
    pub least: AskedIsolation,
    pub by: String,
    pub since: Timestamp,
    /// The number of the restart that put it behind this wall; what was started for a lower one
    /// may be outside.
    #[serde(default)]
    pub restart: u32,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl IsolationMark {
    /// Returns whether what was started for this number of restarts may be outside the wall.
    pub fn is_outside(&self, restart: u32) -> bool {
        restart < self.restart
    }

    /// Returns what it gets that asks for this.
    pub fn bound(&self, asked: AskedIsolation) -> AskedIsolation {
        let isolation = asked.isolation.max(self.least.isolation);
        // A wall that leaves it the machine's network limits nothing there.
        let own = AskedIsolation { isolation, egress: asked.reaches() };
        let egress = own.reaches().min(self.least.reaches());
        let egress = if isolation == Isolation::Full { egress } else { asked.egress };
        AskedIsolation { isolation, egress }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_builds_what_it_has_said_and_nothing_more() {
        let words = ["standard", "full", "of a later build"];
        let able = Walls::of_words(words);
        assert_eq!(able.words(), ["standard", "full"]);
        for (isolation, egress, is_able) in [
            (Isolation::None, Egress::All, true),
            (Isolation::Landlock, Egress::None, false),
            (Isolation::Standard, Egress::All, true),
            (Isolation::Full, Egress::None, true),
            (Isolation::Full, Egress::All, false),
        ] {
            let wanted: Walls = Wall::of(isolation, egress).into_iter().collect();
            assert_eq!(able.contain(wanted), is_able, "{isolation:?} {egress:?}");
            assert!(Walls::ALL.contain(wanted));
        }
    }

    #[test]
    fn isolations_are_in_the_order_of_their_strength_and_read_back() {
        let mut sorted = Isolation::ALL;
        sorted.sort();
        assert_eq!(sorted, Isolation::ALL);
        for isolation in Isolation::ALL {
            let text = serde_json::to_string(&isolation).unwrap();
            assert_eq!(text, format!("\"{}\"", isolation.word()));
            assert_eq!(serde_json::from_str::<Isolation>(&text).unwrap(), isolation);
        }
    }

    #[test]
    fn whatever_is_asked_for_the_mark_is_the_least_and_reaches_no_more() {
        let all = || {
            let of = |isolation| {
                [Egress::None, Egress::All].map(|egress| AskedIsolation { isolation, egress })
            };
            Isolation::ALL.into_iter().flat_map(of)
        };
        for (least, asked) in all().flat_map(|least| all().map(move |asked| (least, asked))) {
            let (by, since) = ("ada".into(), Timestamp(1));
            let mark = IsolationMark { least, by, since, restart: 1, unknown: Unknown::new() };
            let got = mark.bound(asked);
            assert_eq!(got.isolation, asked.isolation.max(least.isolation), "{least:?} {asked:?}");
            assert_eq!(got.reaches(), asked.reaches().min(least.reaches()), "{least:?} {asked:?}");
            assert_eq!(mark.bound(got), got, "{least:?} {asked:?}");
        }
    }
}
