//! Descriptions of handlers, made from their types.

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema};

use crate::json_body::{JsonBody, OptionalJson};
use crate::problem::Problem;

/// The generators of schemas: a type may look different to those who send it, who may leave
/// fields out, and to those who get it.
pub struct Generators {
    pub asked: SchemaGenerator,
    pub answered: SchemaGenerator,
}

#[derive(Debug, Default)]
pub enum BodyShape {
    #[default]
    None,
    Json(Schema),
    OptionalJson(Schema),
    Bytes,
}

#[derive(Debug, Default)]
pub enum AnswerShape {
    Json(Schema),
    Text,
    /// The signature does not say.
    #[default]
    Open,
}

#[derive(Debug, Default)]
pub struct Signature {
    pub query: Option<Schema>,
    pub body: BodyShape,
    pub answer: AnswerShape,
}

#[derive(Clone, Copy, Debug)]
pub struct Description(pub fn(&mut Generators) -> Signature);

/// A handler whose signature is understood, with its arguments as `axum` lists them.
pub trait Described<T> {
    fn description() -> Description;
}

pub trait Argument {
    fn describe(generators: &mut Generators, signature: &mut Signature);
}

pub trait Answer {
    fn describe(generators: &mut Generators) -> AnswerShape;
}

macro_rules! described {
    ($($argument:ident),*) => {
        impl<H, F, M, $($argument),*> Described<(M, $($argument,)*)> for H
        where
            H: FnOnce($($argument),*) -> F,
            F: Future,
            F::Output: Answer,
            $($argument: Argument,)*
        {
            fn description() -> Description {
                Description(|generators| {
                    let mut signature = Signature::default();
                    $($argument::describe(generators, &mut signature);)*
                    signature.answer = F::Output::describe(generators);
                    signature
                })
            }
        }
    };
}

described!(A);
described!(A, B);
described!(A, B, C);
described!(A, B, C, D);
described!(A, B, C, D, E);
described!(A, B, C, D, E, G);

impl<H: FnOnce() -> F, F: Future<Output: Answer>> Described<((),)> for H {
    fn description() -> Description {
        Description(|generators| Signature {
            answer: F::Output::describe(generators),
            ..Signature::default()
        })
    }
}

/// An argument that comes from the node, or from the path, whose parameters the table shows.
macro_rules! says_nothing {
    ($($kind:ident),*) => {
        $(impl<T> Argument for $kind<T> {
            fn describe(_: &mut Generators, _: &mut Signature) {}
        })*
    };
}

says_nothing!(State, Extension, Path);

impl<T: JsonSchema> Argument for Query<T> {
    fn describe(generators: &mut Generators, signature: &mut Signature) {
        signature.query = Some(T::json_schema(&mut generators.asked));
    }
}

impl<T: JsonSchema> Argument for JsonBody<T> {
    fn describe(generators: &mut Generators, signature: &mut Signature) {
        signature.body = BodyShape::Json(generators.asked.subschema_for::<T>());
    }
}

impl<T: JsonSchema> Argument for OptionalJson<T> {
    fn describe(generators: &mut Generators, signature: &mut Signature) {
        signature.body = BodyShape::OptionalJson(generators.asked.subschema_for::<T>());
    }
}

impl Argument for Body {
    fn describe(_: &mut Generators, signature: &mut Signature) {
        signature.body = BodyShape::Bytes;
    }
}

/// A request that is taken whole in order to upgrade its connection.
impl Argument for Request {
    fn describe(_: &mut Generators, _: &mut Signature) {}
}

impl<T: JsonSchema> Answer for Json<T> {
    fn describe(generators: &mut Generators) -> AnswerShape {
        AnswerShape::Json(generators.answered.subschema_for::<T>())
    }
}

impl<T: JsonSchema> Answer for (StatusCode, Json<T>) {
    fn describe(generators: &mut Generators) -> AnswerShape {
        Json::<T>::describe(generators)
    }
}

impl Answer for String {
    fn describe(_: &mut Generators) -> AnswerShape {
        AnswerShape::Text
    }
}

impl Answer for Response {
    fn describe(_: &mut Generators) -> AnswerShape {
        AnswerShape::Open
    }
}

impl<T: Answer> Answer for Result<T, Problem> {
    fn describe(generators: &mut Generators) -> AnswerShape {
        T::describe(generators)
    }
}
