//! What a handler takes and answers, as its signature says. The types of a handler are only known
//! where it is registered, so the table notes there how to describe it, for the test that makes the
//! document; the shipped binary notes nothing.

#[cfg(test)]
mod described;

#[cfg(test)]
pub use described::{AnswerShape, BodyShape, Described, Description, Generators, Signature};
#[cfg(not(test))]
pub use nothing::{Described, Description};

#[cfg(not(test))]
mod nothing {
    #[derive(Clone, Copy)]
    pub struct Description;

    pub trait Described<T> {
        fn description() -> Description {
            Description
        }
    }

    impl<H, T> Described<T> for H {}
}
