//! The intake of this node's own writes: they are refused while its clock is in doubt, and held
//! back while it may not stamp any.

use std::collections::VecDeque;

use model::Timestamp;

use super::WRITES_WAITING_MAX;
use super::context::Context;
use super::queue::QueuedItem;
use super::stamps::ClockDoubt;
use crate::event::{Effect, Unwritten, Write};
use crate::sync::Sync;

pub(super) struct Intake {
    /// Writes that came before this node may stamp any.
    held: VecDeque<Write>,
    writes_from: Timestamp,
}

impl Intake {
    pub fn new(writes_from: Timestamp) -> Intake {
        Intake { held: VecDeque::new(), writes_from }
    }

    /// Returns how many writes are held back.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Queues a write. Writes that came too early wait until this node may stamp them.
    pub fn take(&mut self, write: Write, sync: &Sync, cx: &mut Context<'_>) {
        let early = cx.now < self.writes_from || !sync.may_issue();
        let reason = match cx.stamps.doubt() {
            Some(ClockDoubt::Behind { by_ms }) => Some(Unwritten::ClockBehind { by_ms }),
            Some(ClockDoubt::Leapt { by_ms }) => Some(Unwritten::ClockLeapt { by_ms }),
            None if early && self.held.len() >= WRITES_WAITING_MAX => Some(Unwritten::TooMany),
            None => None,
        };
        if let Some(reason) = reason {
            cx.effects.push(Effect::Refuse { ticket: write.ticket, reason });
        } else if early {
            self.held.push_back(write);
        } else {
            cx.wait(QueuedItem::Write(write));
        }
    }

    /// Queues what was held back, once this node may stamp it.
    pub fn release(&mut self, sync: &Sync, cx: &mut Context<'_>) {
        if self.held.is_empty() || cx.now < self.writes_from || !sync.may_issue() {
            return;
        }
        for write in std::mem::take(&mut self.held) {
            cx.wait(QueuedItem::Write(write));
        }
    }

    /// Returns when what is held back may go on, if nothing but time is in its way.
    pub fn deadline(&self, sync: &Sync) -> Option<Timestamp> {
        let waits = !self.held.is_empty() && sync.may_issue();
        waits.then_some(self.writes_from)
    }
}
