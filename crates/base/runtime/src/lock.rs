//! Mutexes whose content stays right whatever panics: each change under them is done at once.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also after a panic of a thread that held it.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
