//! Requests to an application that asks for a password: what they say is compared with it, one at a
//! time on this node, away from the threads that serve requests.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::application::Password;
use router_core::wall::{self, Guess, Verdict, Walls};
use tokio::sync::Semaphore;

use super::Connection;
use crate::field::field;
use crate::shared::Shared;
use crate::table::RoutedApplication;
use router_core::pages::{self, Page};

/// Requests that wait for their turn to have a password looked at: as many as a browser has at
/// once, for several people.
const WAITING_MAX: usize = 64;
/// The field with the password from clients that need `Authorization` for the application itself.
const FOR_WALL: &str = "Proxy-Authorization";

/// What this router knows of passwords, and whose turn it is.
pub struct WallKeeper {
    walls: Arc<Mutex<Walls>>,
    turn: Arc<Semaphore>,
    waiting: Semaphore,
}

impl WallKeeper {
    pub fn new() -> std::io::Result<WallKeeper> {
        let mut random = [0; 32];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        Ok(WallKeeper {
            walls: Arc::new(Mutex::new(Walls::new(&random))),
            turn: Arc::new(Semaphore::new(1)),
            waiting: Semaphore::new(WAITING_MAX),
        })
    }

    /// Looks at a guess when it is its turn, unless its password is known by then.
    async fn judge(&self, shared: &Shared, password: &Arc<Password>, guess: Guess) -> Verdict {
        let Ok(_place) = self.waiting.try_acquire() else { return Verdict::TooMany };
        let Ok(turn) = self.turn.clone().acquire_owned().await else { return Verdict::TooMany };
        let guess = match lock(&self.walls).begin(shared.clock.now(), guess) {
            Verdict::Unknown(guess) => guess,
            known => return known,
        };
        let (walls, clock, password) = (self.walls.clone(), shared.clock, password.clone());
        // Done to the end although the client may go, so that there is never more than one.
        let looked_at = shared.files.pool().spawn_blocking(move || {
            let is_right = guess.is_right(&password);
            lock(&walls).learn(clock.now(), guess, is_right);
            drop(turn);
            is_right
        });
        match looked_at.await {
            Ok(true) => Verdict::Passes,
            Ok(false) => Verdict::Asked,
            Err(_) => Verdict::TooMany,
        }
    }
}

fn lock(walls: &Mutex<Walls>) -> MutexGuard<'_, Walls> {
    walls.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Returns what a request with this head is answered that does not know the password; `None` if
    /// it does, or none is asked for. What it says of it is taken out of `out`, which goes on.
    pub async fn at_wall(
        &self,
        application: &RoutedApplication,
        head: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Page> {
        let password = application.gate.password.as_ref()?;
        let (shared, client): (_, IpAddr) = (&self.thread.shared, self.peer.ip());
        let (keeper, now) = (&shared.walls, shared.clock.now());
        let fields = [FOR_WALL, "Authorization"].map(|name| (name, field(head, name)));
        let said = fields.into_iter().find(|(_, said)| said.is_some());
        let (name, said) = said.unwrap_or((FOR_WALL, None));
        let verdict = lock(&keeper.walls).look(now, password, client, said);
        let verdict = match verdict {
            Verdict::Unknown(guess) => keeper.judge(shared, password, guess).await,
            known => known,
        };
        match verdict {
            Verdict::Passes => {
                wall::without_field(out, name);
                None
            }
            Verdict::Asked => Some(pages::PASSWORD),
            Verdict::TooMany | Verdict::Unknown(_) => Some(pages::TOO_MANY_GUESSES),
        }
    }
}
