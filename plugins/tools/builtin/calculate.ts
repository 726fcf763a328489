import type { MathNode } from 'mathjs'
import type { PlatformTool } from '#contracts/tools'
import { toolErrors } from '../errors.ts'

const maxExpression = 1_000
/** The parser is recursive, so nesting is bounded. */
const maxDepth = 50

// Each allowed node takes constant time on numbers: an expression cannot define functions, ranges or loops. So an expression of bounded length is
// bounded work, and needs no thread that can be killed.
const nodes = new Set([
  'ConstantNode',
  'OperatorNode',
  'ParenthesisNode',
  'FunctionNode',
  'SymbolNode',
  'ConditionalNode',
  'RelationalNode',
])
const functions = new Set(
  (
    'abs cbrt ceil exp expm1 fix floor gcd hypot lcm log log10 log1p log2 max mean min mod nthRoot pow round sign sqrt square cube ' +
    'sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh factorial gamma sum prod'
  ).split(' '),
)
const operators = new Set(
  (
    'add subtract multiply divide mod pow factorial unaryMinus unaryPlus ' +
    'smaller smallerEq larger largerEq equal unequal and or xor not'
  ).split(' '),
)
const constants = new Set('pi e tau phi PI E LN2 LN10 LOG2E LOG10E SQRT2 SQRT1_2 Infinity true false'.split(' '))

const refuse = (message: string): never => {
  throw toolErrors.calculation({ message })
}

interface Calculator {
  parse(expression: string): MathNode
  format(value: number, precision: number): string
}

/** Arithmetic by the mathjs library, cut down to numbers. Loading the library takes a while, so it happens at the first call or in advance. */
export function createCalculate(): PlatformTool {
  let loading: Promise<Calculator> | undefined
  const loaded = (): Promise<Calculator> => (loading ??= load())
  return {
    name: 'calculate',
    description:
      'Evaluates an arithmetic expression exactly as written and returns the number. Operators + - * / ^ % mod ! and ' +
      'comparisons, parentheses, constants pi and e, and functions such as sqrt, round(x, digits), log(x, base), sin (radians), min, max, mean.',
    inputSchema: {
      type: 'object',
      properties: {
        expression: {
          type: 'string',
          maxLength: maxExpression,
          description: 'For example (17.5 + 3) * 2^10 / sqrt(2).',
        },
      },
      required: ['expression'],
      additionalProperties: false,
    },
    load: loaded,
    async execute(input) {
      const expression = input['expression'] as string
      if (depthOf(expression) > maxDepth) refuse('The expression nests too deep.')
      const math = await loaded()
      return { ok: true, content: calculate(math, expression) }
    },
  }
}

async function load(): Promise<Calculator> {
  const { default: math } = await import('mathjs/lib/browser/math.js')
  const { parse, format } = math
  return { parse: (text) => parse(text), format: (value, precision) => format(value, { precision }) }
}

function calculate(math: Calculator, expression: string): string {
  let tree: MathNode
  try {
    tree = math.parse(expression)
  } catch (error) {
    return refuse(`The expression cannot be read: ${error instanceof SyntaxError ? error.message : 'it is too long'}.`)
  }
  tree.traverse((node: MathNode, path: string, parent: MathNode | null) => check(node, path, parent))
  const value: unknown = evaluate(tree)
  if (typeof value === 'boolean') return String(value)
  if (typeof value !== 'number' || Number.isNaN(value)) return refuse('The result is not a real number.')
  // A whole number that a double holds exactly keeps all its digits: 2^53 - 1 has sixteen.
  if (Number.isSafeInteger(value)) return String(value)
  // For other numbers a double guarantees fifteen digits. Rounding to these shows 0.1 + 0.2 as 0.3.
  return math.format(value, 15)
}

function evaluate(tree: MathNode): unknown {
  try {
    return tree.compile().evaluate(new Map())
  } catch {
    return refuse('The expression cannot be evaluated: check the arguments of its functions.')
  }
}

function check(node: MathNode, path: string, parent: MathNode | null): void {
  if (!nodes.has(node.type)) refuse('Only arithmetic on numbers is possible here.')
  if (node.type === 'ConstantNode') {
    const { value } = node as MathNode & { value: unknown }
    if (typeof value !== 'number' && typeof value !== 'boolean') refuse('Only arithmetic on numbers is possible here.')
  }
  if (node.type === 'OperatorNode' && !operators.has((node as MathNode & { fn: string }).fn)) {
    refuse('Only arithmetic on numbers is possible here.')
  }
  if (node.type === 'SymbolNode') {
    const { name } = node as MathNode & { name: string }
    const called = parent?.type === 'FunctionNode' && path === 'fn'
    if (!(called ? functions : constants).has(name)) refuse(`'${name}' is not known here.`)
  }
  // A function may only be called by its name. Any other callee is an expression that could bypass the list of allowed nodes.
  if (node.type === 'FunctionNode' && (node as MathNode & { fn: MathNode }).fn.type !== 'SymbolNode') {
    refuse('Only arithmetic on numbers is possible here.')
  }
}

function depthOf(text: string): number {
  let depth = 0
  let deepest = 0
  for (const c of text) {
    if (c === '(' || c === '[' || c === '{') deepest = Math.max(deepest, ++depth)
    else if (c === ')' || c === ']' || c === '}') depth--
  }
  return deepest
}
