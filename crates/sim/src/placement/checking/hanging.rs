//! A checker that hangs: its watchdog takes it off, witnesses are heard in its place, and after a
//! while it is tried again, as the shell does it.

use super::Part;
use crate::placement::happening::Happening;
use crate::placement::replica::{Key, Record};
use crate::placement::world::World;

const SILENT_MAX_MS: u64 = 10_000;
/// The pause until a checker that hung is tried again.
const OFF_MS: u64 = 30_000;

impl World {
    pub(in crate::placement) fn hang_checker(&mut self, at: usize, milliseconds: u64) {
        if !self.nodes[at].runs() {
            return;
        }
        let life = self.nodes[at].machines.as_ref().map_or(0, |machines| machines.life);
        let Some(checking) = self.checking(at) else { return };
        if checking.stuck || checking.own.is_none() {
            return;
        }
        checking.stuck = true;
        self.count("checker hung");
        self.tell(|| format!("checker of {at} hangs for {milliseconds}"));
        self.later(milliseconds, Happening::CheckerGoesOn { at, life });
        self.later(SILENT_MAX_MS, Happening::CheckerSilent { at, life });
    }

    /// Lets a checker go on that hung: what waited for it meanwhile is what is on record.
    pub(in crate::placement) fn checker_goes_on(&mut self, at: usize, life: u64) {
        let Some(checking) = self.checking_of(at, life).filter(|checking| checking.stuck) else {
            return;
        };
        checking.stuck = false;
        if checking.own.is_some() {
            self.part_up(at, Part::Checker);
        }
    }

    pub(in crate::placement) fn checker_silent(&mut self, at: usize, life: u64) {
        let Some(checking) = self.checking_of(at, life).filter(|checking| checking.stuck) else {
            return;
        };
        checking.own = None;
        if self.nodes[at].disk_full {
            return self.later(SILENT_MAX_MS, Happening::CheckerSilent { at, life });
        }
        self.say_that_it_checks(at, false);
        self.part_up(at, Part::Jury);
        self.later(OFF_MS, Happening::CheckerTried { at, life });
    }

    pub(in crate::placement) fn checker_tried(&mut self, at: usize, life: u64) {
        let Some(checking) = self.checking_of(at, life) else { return };
        checking.jury = None;
        self.part_up(at, Part::Checker);
        self.later(SILENT_MAX_MS, Happening::CheckerSilent { at, life });
        self.later(SILENT_MAX_MS, Happening::CheckerProven { at, life });
    }

    pub(in crate::placement) fn checker_proven(&mut self, at: usize, life: u64) {
        let works = |checking: &&mut super::Checking| !checking.stuck && checking.own.is_some();
        if self.checking_of(at, life).filter(works).is_none() {
            return;
        }
        if self.nodes[at].disk_full {
            return self.later(SILENT_MAX_MS, Happening::CheckerProven { at, life });
        }
        self.say_that_it_checks(at, true);
    }

    fn checking_of(&mut self, at: usize, life: u64) -> Option<&mut super::Checking> {
        let machines = self.nodes[at].machines.as_mut().filter(|machines| machines.life == life);
        machines.map(|machines| &mut machines.checking)
    }

    /// Writes whether it checks into this node's own record, where others look for nodes whose
    /// instances they have to testify of.
    pub(super) fn say_that_it_checks(&mut self, at: usize, checks: bool) {
        let key = Key::Roles(self.nodes[at].id.clone());
        if self.nodes[at].replica.get(&key) != Some(&Record::Roles { checks }) {
            self.write(at, key, Some(Record::Roles { checks }));
        }
    }
}
