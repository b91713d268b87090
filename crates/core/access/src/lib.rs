//! The rights of people: principals, rights, roles and the state of tokens. It decides and knows
//! neither the API nor the store; whoever serves a request tells it what the records say.

mod allowance;
mod decide;
mod isolation;
mod quota;
mod right;
mod token;
mod touch;

pub use allowance::Allowance;
pub use decide::{AccessTarget, Decision, Principal, Refusal, decide, loses_last_owner};
pub use decide::{is_within, teams_for_new};
pub use isolation::{DefaultReason, default_isolation, is_below_owner};
pub use quota::{INSTANCE_MEMORY_DEFAULT, LimitExceeded, Resource, TeamUse, check_limits};
pub use right::{Reach, Right};
pub use token::{
    LAST_USE_STEP, TOKEN_AGE_DEFAULT, TOKEN_AGE_MAX, TOKEN_KEPT, TOKEN_RANDOM_BYTES, TokenFault,
    TokenState, TokenText, is_use_due,
};
pub use touch::{CUT_OFF_AFTER, Touch, is_half};
