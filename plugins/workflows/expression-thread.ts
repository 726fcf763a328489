// The thread in which templates and conditions of tenants are evaluated. See evaluator.ts.
import { parentPort } from 'node:worker_threads'
import { answerTo, type Question } from './expressions.ts'

parentPort!.on('message', (question: Question) => parentPort!.postMessage(answerTo(question)))
parentPort!.postMessage('loaded')
